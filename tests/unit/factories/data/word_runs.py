"""Runs of words as strings, to compare the numbers of runs with."""


def runs_of(words: list[str], length: int) -> list[str]:
    """Every run of that many words; a shorter text is one run.

    Example: runs of two in `a b c` are `a b` and `b c`.
    """
    if len(words) <= length:
        return [" ".join(words)] if words else []
    return [" ".join(run) for run in zip(*(words[start:] for start in range(length)), strict=False)]
