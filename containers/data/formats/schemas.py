"""Parsers from one object of a preference file to one row, one for each schema (see `columns`)."""

from collections.abc import Mapping

from containers.data.formats.dialogues import make_vote
from containers.data.formats.sides import (
    finite_number,
    last_turn,
    score_difference,
    strength,
    turns_or_text,
    with_system,
)
from containers.data.formats.transcripts import turns_of_prompt
from containers.data.rows import (
    MalformedRowError,
    PreferenceRow,
    Value,
    annotator_scores,
    column,
    integer,
    make_row,
    read_prompt,
    read_response,
)


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
            chosen, rejected = turns_or_text(chosen), turns_or_text(rejected)
        prompt = read_prompt(value["prompt"] if turns is None else turns)
    prompt = with_system(value, prompt)
    difference = score_difference(value)
    if value.get("margin") is not None:
        margin = finite_number(value["margin"])
        if margin is None or margin < 0:
            raise MalformedRowError("margin_not_a_strength", value["margin"])
    else:
        margin = 1.0 if difference is None else strength(difference)
    return make_row(
        value,
        prompt=prompt,
        chosen=last_turn(chosen, prompt),
        rejected=last_turn(rejected, prompt),
        margin=margin,
        signs=() if difference is None else (difference,),
    )


def parse_arena(value: Value) -> PreferenceRow:
    """Arena: the winner has the strength 1, a tie 0."""
    prompt = read_prompt(column(value, "prompt"))
    return make_vote(
        value,
        prompt=prompt,
        response_a=read_response(column(value, "response_a")),
        response_b=read_response(column(value, "response_b")),
    )


def parse_pku_safe_rlhf(value: Value) -> PreferenceRow:
    """PKU-SafeRLHF by `better_response_id`, the more helpful answer; a row without this label is a tie.

    The label of the safer answer is read where `dataset.columns` names it `better_response_id`. Both labels are of
    people, and may differ by intent, so neither checks the other.
    """
    prompt = read_prompt(column(value, "prompt"))
    responses = [read_response(column(value, name)) for name in ("response_0", "response_1")]
    better = column(value, "better_response_id")
    is_tie = better is None or better != better
    if not is_tie and (isinstance(better, bool) or better not in (0, 1)):
        raise MalformedRowError("better_response_id_not_0_or_1", repr(better)[:80])
    place = 0 if is_tie else int(better)
    return make_row(
        value,
        prompt=prompt,
        chosen=responses[place],
        rejected=responses[1 - place],
        margin=0.0 if is_tie else 1.0,
    )


def parse_ultrafeedback(value: Value) -> PreferenceRow:
    """Pair the completion of the highest `overall_score` with that of the lowest.

    The mean scores by aspect check the label: the published set has answers of 1 written as 10, whose aspects say
    otherwise (issue of the set, found by Argilla's edition).
    """
    prompt = read_prompt(column(value, "instruction"))
    completions = column(value, "completions")
    if not isinstance(completions, list | tuple) or not all(isinstance(item, Mapping) for item in completions):
        raise MalformedRowError("completions_not_objects", repr(completions)[:80])
    scored = [(score, item) for item in completions if (score := finite_number(item.get("overall_score"))) is not None]
    if len(scored) < 2:
        raise MalformedRowError("fewer_than_two_scores", f"{len(scored)} of {len(completions)} completions")
    best_score, best = max(scored, key=lambda item: item[0])
    worst_score, worst = min(reversed(scored), key=lambda item: item[0])
    aspects = [finite_number(item.get("fine-grained_score")) for item in (best, worst)]
    return make_row(
        value,
        prompt=prompt,
        chosen=read_response(best.get("response")),
        rejected=read_response(worst.get("response")),
        margin=strength(best_score - worst_score),
        signs=() if aspects[0] is None or aspects[1] is None else (aspects[0] - aspects[1],),
    )


def parse_comparison(value: Value) -> PreferenceRow:
    """Parse two joined lines: `text` holds the text of the good line and that of the bad line."""
    texts = column(value, "text")
    if not isinstance(texts, list | tuple) or len(texts) != 2 or not all(isinstance(text, str) for text in texts):
        raise MalformedRowError("comparison_not_two_texts", repr(texts)[:80])
    return parse_trl({"chosen": texts[0], "rejected": texts[1]})


def _split_at_first_difference(chosen: object, rejected: object) -> tuple[object, object, object]:
    """Return the shared beginning of two conversations or texts, and the rest of each."""
    left, right = turns_or_text(chosen), turns_or_text(rejected)
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
