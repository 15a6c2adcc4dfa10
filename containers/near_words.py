"""Find the known word behind a misspelt or abbreviated one. Pure; the only place with such a guess."""

import difflib
import re
from collections.abc import Iterable

# From this ratio on, two words differ by a typo, even if one could be an abbreviation.
_TYPO = 0.85
_CUTOFF = 0.6
# Names share parts (`train_sft`, `train_policy`); the rest without these parts must be alike too.
_REST_CUTOFF = 0.5


def nearest_word(word: str, known: Iterable[str], *, cutoff: float = _CUTOFF) -> str | None:
    """The known word nearest to `word`; None where none is near, or where an abbreviation fits several.

    A typo comes first (`train_sftt`), then parts that are cut or are initials (`train_rm` for `train_reward_model`,
    `eval` for `evaluate`), then other similar words.
    """
    words = list(dict.fromkeys(known))
    plain = {name: _plain(name) for name in words}
    wanted = _plain(word)
    ranked = sorted(words, key=lambda name: _ratio(wanted, plain[name]), reverse=True)
    if ranked and _ratio(wanted, plain[ranked[0]]) >= _TYPO:
        return ranked[0]
    shortened = [name for name in words if _is_within(wanted.split("_"), plain[name].split("_"))]
    if shortened:
        return shortened[0] if len(shortened) == 1 else None
    near = (name for name in ranked if _ratio(wanted, plain[name]) >= cutoff and _rest_is_alike(wanted, plain[name]))
    return next(near, None)


def _plain(word: str) -> str:
    return re.sub(r"[-\s]+", "_", word.strip().strip("-").lower())


def _ratio(word: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, word).ratio()


def _rest_is_alike(word: str, other: str) -> bool:
    """Whether two words are alike without the parts that they share at the beginning and end."""
    one, two = word.split("_"), other.split("_")
    while one and two and one[0] == two[0]:
        one, two = one[1:], two[1:]
    while one and two and one[-1] == two[-1]:
        one, two = one[:-1], two[:-1]
    return not one or not two or _ratio("_".join(one), "_".join(two)) >= _REST_CUTOFF


def _is_within(parts: list[str], whole: list[str]) -> bool:
    """Whether the parts are short for the end of `whole`, from any of its parts on: `sft` in `train_sft`."""
    return any(_is_short_for(parts, whole[first:]) for first in range(len(whole)))


def _is_short_for(parts: list[str], whole: list[str]) -> bool:
    """Whether each part begins a part of `whole`, or is the initials of several; trailing parts may be missing.

    Example: ["train", "rm"] is short for ["train", "reward", "model"].
    """
    if not parts:
        return True
    part, rest = parts[0], parts[1:]
    if not part or not whole:
        return False
    if whole[0].startswith(part) and _is_short_for(rest, whole[1:]):
        return True
    covered = len(part)
    initials = "".join(name[:1] for name in whole[:covered])
    return 1 < covered <= len(whole) and initials == part and _is_short_for(rest, whole[covered:])
