"""Rows with one prompt and several answers: the pairs that are made of them.

Ranking     prompt | instruction, responses | completions | answers | generations, ranks | scores | ratings
Nectar      prompt, num_responses, answers [{answer, rank}, …]

`ranks`: 1 is the best. `scores` and `ratings`: the highest is the best. A column `ranking` is not read by that name,
since it may hold ranks, or places in order of rank: `dataset.columns` says that it holds ranks.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from containers.contracts.configs.parts.row_filters import RankingPairs
from containers.data.formats.sides import finite_number, last_turn, plain_response, strength, with_system
from containers.data.formats.transcripts import turns_of_prompt
from containers.data.rows import (
    MAX_STRENGTH,
    MalformedRowError,
    PreferenceRow,
    Turn,
    Value,
    column,
    make_row,
    read_prompt,
)

PROMPTS = ("prompt", "instruction")
ANSWERS = ("responses", "completions", "answers", "generations")
ORDERS = ("ranks", "scores", "ratings")
# All pairs of more answers than this would be thousands of one prompt.
MAX_ANSWERS = 64

# Quality of an answer, the higher the better, and its place in the row.
_Place = tuple[float, int]
_TEXTS = ("answer", "response", "text", "content")


def parse_ranking(value: Value) -> PreferenceRow:
    """The best answer against the worst; of several best ones the first, of several worst ones the last."""
    given = column(value, "prompt" if "prompt" in value else "instruction")
    turns = turns_of_prompt(given)
    prompt = with_system(value, read_prompt(given if turns is None else turns))
    answers, ordered = _answers(value), _by_quality(value)
    (best_quality, best), (worst_quality, worst) = ordered[0], ordered[-1]
    difference = best_quality - worst_quality
    is_ranked = _order_name(value) in (None, "ranks")
    return make_row(
        value,
        prompt=prompt,
        chosen=_text(answers[best], prompt),
        rejected=_text(answers[worst], prompt),
        margin=min(float(MAX_STRENGTH), difference) if is_ranked else strength(difference),
    )


def ranking_rows(value: Value, choice: RankingPairs) -> Sequence[Value]:
    """The row as one row for each of its pairs.

    Raises:
        MalformedRowError: its answers have no order.
    """
    if choice == "best_and_worst":
        return (value,)
    answers, order = _answers(value), _order_name(value)
    ordered = _by_quality(value)
    rows = []
    for pair in _pairs(ordered, choice):
        places = [place for _, place in pair]
        row = {**value, _answers_name(value): [answers[place] for place in places]}
        if order is not None:
            row[order] = [value[order][place] for place in places]
        rows.append(row)
    return rows


def ultrafeedback_rows(value: Value, choice: RankingPairs) -> Sequence[Value]:
    """A row of UltraFeedback as one row for each of its pairs; a row without two scores as it is, for its parser."""
    completions = value.get("completions")
    if choice == "best_and_worst" or not isinstance(completions, list | tuple):
        return (value,)
    if len(completions) > MAX_ANSWERS or not all(isinstance(item, Mapping) for item in completions):
        return (value,)
    found = [(finite_number(item.get("overall_score")), place) for place, item in enumerate(completions)]
    ordered = sorted([(score, place) for score, place in found if score is not None], key=lambda item: -item[0])
    if len(ordered) < 2:
        return (value,)
    return [{**value, "completions": [completions[place] for _, place in pair]} for pair in _pairs(ordered, choice)]


def _pairs(ordered: Sequence[_Place], choice: RankingPairs) -> Iterable[tuple[_Place, _Place]]:
    return itertools.pairwise(ordered) if choice == "adjacent" else itertools.combinations(ordered, 2)


def _answers_name(value: Value) -> str:
    return next((name for name in ANSWERS if name in value), ANSWERS[0])


def _order_name(value: Value) -> str | None:
    """The column with the order; None if each answer has its own rank."""
    return next((name for name in ORDERS if name in value), None)


def _answers(value: Value) -> Sequence[Any]:
    name = _answers_name(value)
    answers = column(value, name)
    if not isinstance(answers, list | tuple):
        raise MalformedRowError(f"{name}_not_a_list", repr(answers)[:80])
    if len(answers) > MAX_ANSWERS:
        raise MalformedRowError("too_many_answers", f"{len(answers)}, more than {MAX_ANSWERS}")
    return answers


def _by_quality(value: Value) -> list[_Place]:
    """Quality and place of each answer that has a rank or score, the best first; equal ones in the row's order."""
    answers, name = _answers(value), _order_name(value)
    if name is None:
        order: object = [item.get("rank") if isinstance(item, Mapping) else None for item in answers]
    else:
        order = value[name]
    if not isinstance(order, list | tuple) or len(order) != len(answers):
        count = len(order) if isinstance(order, list | tuple) else repr(order)[:40]
        raise MalformedRowError(f"{name}_not_one_for_each_answer", f"{count} for {len(answers)} answers")
    sign = -1.0 if name in (None, "ranks") else 1.0
    found = [(finite_number(item), place) for place, item in enumerate(order)]
    qualities = [(sign * number, place) for number, place in found if number is not None]
    if len(qualities) < 2:
        raise MalformedRowError("fewer_than_two_scores", f"{len(qualities)} of {len(answers)} answers")
    return sorted(qualities, key=lambda item: -item[0])


def _text(answer: object, prompt: Sequence[Turn]) -> str:
    """An answer as text, as a turn, as a list with one turn, or as an object that holds its text."""
    if isinstance(answer, Mapping):
        return plain_response(next((answer[name] for name in _TEXTS if answer.get(name) is not None), None))
    return last_turn(answer, prompt)
