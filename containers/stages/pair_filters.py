"""Which rows teach nothing or teach wrongly: small pure functions over rows."""

import re
from collections.abc import Callable, Iterable, Sequence

from containers.stages.pair_schemas import PreferenceRow

# What separates turns in the chat templates in use. In a user's text they would end the turn and forge the next one.
_CONTROL_TOKEN = re.compile(
    r"<[|｜][^\s<>|｜]{1,40}[|｜]>"  # <|im_start|>, <|eot_id|>, <｜begin▁of▁sentence｜>
    r"|\[/?INST\]|<</?SYS>>"
    r"|<(?:start|end)_of_turn>"
    r"|</?think>"  # templates of thinking models cut an answer there
)


def control_token(row: PreferenceRow) -> str:
    """The first control token of a chat template in any text of the row; empty where there is none."""
    for text in texts(row):
        if ("<" in text or "INST]" in text) and (match := _CONTROL_TOKEN.search(text)):
            return match.group()
    return ""


def texts(row: PreferenceRow) -> Iterable[str]:
    """Every text of the row: turns of the prompt, chosen, rejected."""
    yield from (turn["content"] for turn in row.pair.prompt)
    yield row.pair.chosen
    yield row.pair.rejected


def num_characters(row: PreferenceRow) -> int:
    """Characters of the prompt plus its longer response."""
    prompt = sum(len(turn["content"]) for turn in row.pair.prompt)
    return prompt + max(len(row.pair.chosen), len(row.pair.rejected))


def has_equal_responses(row: PreferenceRow) -> bool:
    """Whether the two responses are the same but for white space at their ends."""
    return row.pair.chosen.strip() == row.pair.rejected.strip()


# In the order in which they are asked: the first that holds names the reason.
FLAWS: tuple[tuple[str, Callable[[PreferenceRow], bool]], ...] = (
    ("tie", lambda row: row.is_tie),
    ("equal_responses", has_equal_responses),
    ("control_tokens", lambda row: bool(control_token(row))),
    ("contradicts_annotators", lambda row: row.contradicts_annotators),
)


def first_flaw(row: PreferenceRow) -> str:
    """The name of the first flaw that a row has by itself; empty for a good one."""
    return next((name for name, holds in FLAWS if holds(row)), "")


def repeated(rows: Sequence[PreferenceRow]) -> set[int]:
    """Positions of rows that say again what an earlier row said: same prompt, same chosen, same rejected."""
    seen: set[str] = set()
    positions = set()
    for position, row in enumerate(rows):
        if row.pair.pair_id in seen:
            positions.add(position)
        seen.add(row.pair.pair_id)
    return positions


def contradictory(rows: Sequence[PreferenceRow]) -> set[int]:
    """Positions of rows that say the opposite of another row: same prompt, chosen and rejected exchanged. Both fall."""
    said = {_order(row) for row in rows}
    return {position for position, row in enumerate(rows) if _reverse(row) in said}


def _order(row: PreferenceRow) -> tuple[str, str, str]:
    return row.prompt_id, row.pair.chosen, row.pair.rejected


def _reverse(row: PreferenceRow) -> tuple[str, str, str]:
    return row.prompt_id, row.pair.rejected, row.pair.chosen
