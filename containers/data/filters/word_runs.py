"""Words of a text and runs of words in it, for comparing texts: letter case, punctuation and breaks do not count."""

import re

# Chinese and Japanese are written without spaces: there each character counts as a word.
IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_ASCII_WORD = re.compile(r"\w+", re.ASCII)
_WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\W{IDEOGRAPHS}]+")


def words_of(text: str) -> list[str]:
    """The words in order, folded to one case."""
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text.casefold())


def runs_of(words: list[str], length: int) -> list[str]:
    """Every run of that many words; a shorter text is one run.

    Example: runs of two in `a b c` are `a b` and `b c`.
    """
    if len(words) <= length:
        return [" ".join(words)] if words else []
    return [" ".join(run) for run in zip(*(words[start:] for start in range(length)), strict=False)]
