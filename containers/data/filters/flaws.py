"""Tests for rows that teach nothing or teach wrongly: small pure functions over rows."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from containers.data.rows import PreferenceRow

# Separators of turns in common chat templates. In a user's text they would end the turn and forge the next one.
# Each pattern begins with one fixed character, so that the search can skip to it.
_IN_ANGLES = re.compile(
    r"<(?:[|｜][^\s<>|｜]{1,40}[|｜]>"  # <|im_start|>, <|eot_id|>, <｜begin▁of▁sentence｜>
    r"|</?SYS>>"
    r"|(?:start|end)_of_turn>"
    r"|extra_id_\d+>"
    r"|/?think>)"  # templates of thinking models cut an answer there
)
_IN_SQUARES = re.compile(r"\[/?INST\]")


def control_token(row: PreferenceRow) -> str:
    """The first control token of a chat template in any text of the row; empty where there is none."""
    pair = row.pair
    return control_token_in((*[turn["content"] for turn in pair.prompt], pair.chosen, pair.rejected))


def control_token_in(texts: Iterable[str]) -> str:
    """The first control token in any of the texts; empty where there is none."""
    for text in texts:
        if "<" in text or "[" in text:
            found = [match for match in (_IN_ANGLES.search(text), _IN_SQUARES.search(text)) if match]
            if found:
                return min(found, key=lambda match: match.start()).group()
    return ""


def num_characters(row: PreferenceRow) -> int:
    """Characters of the prompt plus its longer response."""
    pair = row.pair
    return sum([len(turn["content"]) for turn in pair.prompt]) + max(len(pair.chosen), len(pair.rejected))


def has_equal_responses(row: PreferenceRow) -> bool:
    """Whether the two responses are the same but for white space at their ends."""
    return row.pair.chosen.strip() == row.pair.rejected.strip()


# What each flaw shows of a row that has it, empty for a row without. In order: the first is the reason.
FLAWS: dict[str, Callable[[PreferenceRow], str]] = {
    "tie": lambda row: "no response is better" if row.is_tie else "",
    "equal_responses": lambda row: row.pair.chosen if has_equal_responses(row) else "",
    "control_tokens": control_token,
    "contradicts_annotators": lambda row: "label against every annotator" if row.contradicts_annotators else "",
}


def first_flaw(row: PreferenceRow) -> str:
    """The name of the first flaw that a row has; empty for a good row."""
    return next((name for name, shown in FLAWS.items() if shown(row)), "")


def repeated(rows: Sequence[PreferenceRow]) -> set[int]:
    """Positions of rows that repeat an earlier row: same prompt, same chosen, same rejected."""
    first: dict[str, int] = {}
    return {place for place, row in enumerate(rows) if first.setdefault(row.pair.pair_id, place) != place}


def contradictory(rows: Sequence[PreferenceRow]) -> set[int]:
    """Positions of both rows of each contradiction: same prompt, chosen and rejected exchanged."""
    asked = Counter([row.prompt_id for row in rows])
    likely = [(position, row.prompt_id, row.pair) for position, row in enumerate(rows) if asked[row.prompt_id] > 1]
    said = {(prompt_id, pair.chosen, pair.rejected) for _, prompt_id, pair in likely}
    return {position for position, prompt_id, pair in likely if (prompt_id, pair.rejected, pair.chosen) in said}
