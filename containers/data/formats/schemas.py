"""Parsers from one object of a preference file to one row, one for each schema (see `columns`)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from containers.data.formats.transcripts import turns_of_prompt, turns_of_text
from containers.data.rows import (
    MAX_STRENGTH,
    MalformedRowError,
    PreferenceRow,
    Turn,
    Value,
    annotator_scores,
    column,
    integer,
    make_row,
    read_prompt,
    read_response,
)

# Names of the two scores as UltraFeedback's editions write them.
_SCORES_OF_SIDES = (("score_chosen", "score_rejected"), ("chosen-rating", "rejected-rating"))
_WINNERS = {"a": "a", "b": "b", "tie": "tie", "model_a": "a", "model_b": "b", "tie (bothbad)": "tie"}


def parse_helpsteer3(value: Value) -> PreferenceRow:
    """HelpSteer3: a negative preference says that response 1 is better."""
    prompt = read_prompt(column(value, "context"))
    response1 = read_response(column(value, "response1"))
    response2 = read_response(column(value, "response2"))
    preference = integer(column(value, "overall_preference"), "label_not_an_integer", "label_out_of_range")
    scores = annotator_scores(value.get("individual_preference"))
    chosen, rejected = (response1, response2) if preference <= 0 else (response2, response1)
    return make_row(
        value,
        prompt=prompt,
        chosen=chosen,
        rejected=rejected,
        margin=abs(preference),
        signs=[score * preference for score in scores],
    )


def parse_trl(value: Value) -> PreferenceRow:
    """TRL preference: a missing prompt is what chosen and rejected begin with; scores beside them tell the strength."""
    chosen, rejected = column(value, "chosen"), column(value, "rejected")
    if value.get("prompt") is None:
        shared, chosen, rejected = _split_at_first_difference(chosen, rejected)
        prompt = read_prompt(shared)
    else:
        turns = turns_of_prompt(value["prompt"])
        if turns is not None:
            chosen, rejected = _turns_or_text(chosen), _turns_or_text(rejected)
        prompt = read_prompt(value["prompt"] if turns is None else turns)
    difference = _score_difference(value)
    if value.get("margin") is not None:
        margin = _score(value["margin"])
        if margin is None or margin < 0:
            raise MalformedRowError("margin_not_a_strength", value["margin"])
    else:
        margin = 1.0 if difference is None else _strength(difference)
    return make_row(
        value,
        prompt=prompt,
        chosen=_last_turn(chosen, prompt),
        rejected=_last_turn(rejected, prompt),
        margin=margin,
        signs=() if difference is None else (difference,),
    )


def parse_arena(value: Value) -> PreferenceRow:
    """Arena: the winner has the strength 1, a tie 0."""
    prompt = read_prompt(column(value, "prompt"))
    response_a = read_response(column(value, "response_a"))
    response_b = read_response(column(value, "response_b"))
    winner = column(value, "winner")
    name = _WINNERS.get(winner.strip().lower()) if isinstance(winner, str) else None
    if name is None:
        raise MalformedRowError("winner_unknown", winner)
    chosen, rejected = (response_b, response_a) if name == "b" else (response_a, response_b)
    return make_row(value, prompt=prompt, chosen=chosen, rejected=rejected, margin=0.0 if name == "tie" else 1.0)


def parse_ultrafeedback(value: Value) -> PreferenceRow:
    """Pair the completion of the highest `overall_score` with that of the lowest.

    The mean scores by aspect check the label: the published set has answers of 1 written as 10, whose aspects say
    otherwise (issue of the set, found by Argilla's edition).
    """
    prompt = read_prompt(column(value, "instruction"))
    completions = column(value, "completions")
    if not isinstance(completions, list | tuple) or not all(isinstance(item, Mapping) for item in completions):
        raise MalformedRowError("completions_not_objects", repr(completions)[:80])
    scored = [(score, item) for item in completions if (score := _score(item.get("overall_score"))) is not None]
    if len(scored) < 2:
        raise MalformedRowError("fewer_than_two_scores", f"{len(scored)} of {len(completions)} completions")
    best_score, best = max(scored, key=lambda item: item[0])
    worst_score, worst = min(reversed(scored), key=lambda item: item[0])
    aspects = [_score(item.get("fine-grained_score")) for item in (best, worst)]
    return make_row(
        value,
        prompt=prompt,
        chosen=read_response(best.get("response")),
        rejected=read_response(worst.get("response")),
        margin=_strength(best_score - worst_score),
        signs=() if aspects[0] is None or aspects[1] is None else (aspects[0] - aspects[1],),
    )


def parse_comparison(value: Value) -> PreferenceRow:
    """Parse two joined lines: `text` holds the text of the good line and that of the bad line."""
    texts = column(value, "text")
    if not isinstance(texts, list | tuple) or len(texts) != 2 or not all(isinstance(text, str) for text in texts):
        raise MalformedRowError("comparison_not_two_texts", repr(texts)[:80])
    return parse_trl({"chosen": texts[0], "rejected": texts[1]})


def _score(value: object) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _score_difference(value: Value) -> float | None:
    """Score of the chosen side minus score of the rejected side; None if the row lacks one."""
    for names in _SCORES_OF_SIDES:
        chosen, rejected = (_score(value.get(name)) for name in names)
        if chosen is not None and rejected is not None:
            return chosen - rejected
    return None


def _strength(difference: float) -> float:
    """Strength of a difference of scores from 1 to 10: one point is 1, two are 2, more is 3. No difference is a tie.

    Example: 8.5 against 7 is 2.
    """
    return float(min(MAX_STRENGTH, math.ceil(abs(difference))))


def _turns_or_text(value: object) -> object:
    """The turns of a transcript; anything else as it is."""
    turns = turns_of_text(value) if isinstance(value, str) else None
    return value if turns is None else turns


def _split_at_first_difference(chosen: object, rejected: object) -> tuple[object, object, object]:
    """Return the shared beginning of two conversations or texts, and the rest of each."""
    left, right = _turns_or_text(chosen), _turns_or_text(rejected)
    if isinstance(left, str) and isinstance(right, str):
        return _split_texts(left, right)
    if not isinstance(left, list) or not isinstance(right, list) or min(len(left), len(right)) < 2:
        raise MalformedRowError("prompt_not_to_be_found", f"{chosen!r:.60} …")
    length, longest = 0, min(len(left), len(right)) - 1
    while length < longest and left[length] == right[length]:
        length += 1
    return left[:length], left[length:], right[length:]


def _split_texts(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Return the words that both texts begin with, and the rest of each."""
    length, longest = 0, min(len(chosen), len(rejected))
    while length < longest and chosen[length] == rejected[length]:
        length += 1
    while length and not chosen[length - 1].isspace():
        length -= 1
    if not chosen[:length].strip():
        raise MalformedRowError("prompt_not_to_be_found", f"{chosen!r:.60} …")
    return chosen[:length].rstrip(), chosen[length:], rejected[length:]


def _last_turn(value: object, prompt: Sequence[Turn]) -> str:
    """Return the one assistant turn of a completion; a repeated prompt before it is cut off."""
    if not isinstance(value, list):
        return read_response(value)
    turns: list[Any] = value
    if len(turns) == len(prompt) + 1 and tuple(turns[:-1]) == tuple(prompt):
        turns = turns[-1:]
    if len(turns) != 1:
        raise MalformedRowError("completion_not_one_turn", f"{len(turns)} turns")
    if isinstance(turns[0], Mapping) and turns[0].get("content") is not None and turns[0].get("role") == "assistant":
        return read_response(turns[0]["content"])
    raise MalformedRowError("completion_not_one_turn", repr(turns[0])[:80])
