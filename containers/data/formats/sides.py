"""What the parsers of several schemas share: scores, their difference as a strength, and the one answer of a side."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from containers.data.formats.transcripts import turns_of_text
from containers.data.rows import MAX_STRENGTH, MalformedRowError, Turn, Value, clean_text, read_response

# Names of the two scores as UltraFeedback's and Argilla's editions write them.
SCORES_OF_SIDES = (
    ("score_chosen", "score_rejected"),
    ("chosen-rating", "rejected-rating"),
    ("chosen_rating", "rejected_rating"),
    ("rating_chosen", "rating_rejected"),
    ("chosen_avg_rating", "rejected_avg_rating"),
)
_ENCODED_TURNS = ('[{"role"', "[{'role'", '[{"content"', "[{'content'", '[{"from"', "[{'from'", '{"from"', "{'from'")


def finite_number(value: object) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def score_difference(value: Value) -> float | None:
    """Score of the chosen side minus score of the rejected side; None if the row lacks one."""
    for names in SCORES_OF_SIDES:
        chosen, rejected = (finite_number(value.get(name)) for name in names)
        if chosen is not None and rejected is not None:
            return chosen - rejected
    return None


def strength(difference: float) -> float:
    """Strength of a difference of scores from 1 to 10: one point is 1, two are 2, more is 3. No difference is a tie.

    Example: 8.5 against 7 is 2.
    """
    return float(min(MAX_STRENGTH, math.ceil(abs(difference))))


def turns_or_text(value: object) -> object:
    """The turns of a transcript; anything else as it is."""
    turns = turns_of_text(value) if isinstance(value, str) else None
    return value if turns is None else turns


def last_turn(value: object, prompt: Sequence[Turn]) -> str:
    """Return the one assistant turn of a completion; a repeated prompt before it is cut off.

    Raises:
        MalformedRowError: it is neither text nor one turn of the assistant, or it is turns written as JSON text.
    """
    if not isinstance(value, list):
        return plain_response(value)
    turns: list[Any] = value
    without_system = prompt[1:] if prompt and prompt[0]["role"] == "system" else prompt
    if len(turns) > 1 and tuple(turns[:-1]) in (tuple(prompt), tuple(without_system)):
        turns = turns[-1:]
    if len(turns) != 1:
        raise MalformedRowError("completion_not_one_turn", f"{len(turns)} turns")
    if isinstance(turns[0], Mapping) and turns[0].get("content") is not None and turns[0].get("role") == "assistant":
        return read_response(turns[0]["content"])
    raise MalformedRowError("completion_not_one_turn", repr(turns[0])[:80])


def plain_response(value: object) -> str:
    """The text of a completion.

    Raises:
        MalformedRowError: as `read_response`; or the text is turns written as JSON.
    """
    if isinstance(value, str) and value.lstrip().startswith(_ENCODED_TURNS):
        raise MalformedRowError("response_is_encoded_json", value[:80])
    return read_response(value)


def with_system(value: Value, prompt: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """The prompt after the system turn of the column `system`, unless that is empty or the prompt has one.

    Raises:
        MalformedRowError: the column holds no text.
    """
    system = value.get("system")
    if system is None or (prompt and prompt[0]["role"] == "system"):
        return prompt
    if not isinstance(system, str):
        raise MalformedRowError("system_not_text", repr(system)[:80])
    if not system or system.isspace():
        return prompt
    return ({"role": "system", "content": clean_text(system)}, *prompt)
