"""Human preference: votes of people between two responses, ties included.

The rule is this project's own, for votes as Chatbot Arena collects them (Chiang et al. 2024, arXiv:2403.04132): the
score is the share of decided votes whose winner scores higher, ties left out. Ties have their own figure,
`tie_separation`: how often the size of the margin of a decided vote is larger than that of a tie (the area under the
ROC curve, equal sizes count half). 0.5 means that the margin says nothing about ties, 1 that a threshold on it would
find them all.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from containers.contracts.outcome import Metric
from containers.data.rows import MalformedRowError
from containers.evals.intervals import Floats, drawn_places, percentile_interval
from containers.evals.suites.base import (
    Benchmark,
    Comparison,
    Intervals,
    Row,
    ScoredItem,
    SuiteFigures,
    SuiteItem,
    list_column,
    row_id,
    text_column,
)
from containers.evals.suites.figures import by_subset, pair_credits, pooled_figures
from containers.evals.suites.rows import Layout, read_suite, suite_item

_A, _B, _TIE = "a", "b", "tie"
_WINNERS = {
    "a": _A,
    "b": _B,
    "model_a": _A,
    "model_b": _B,
    "tie": _TIE,
    "tie (bothbad)": _TIE,
    "both_bad": _TIE,
}
_FLAGS = {"winner_model_a": _A, "winner_model_b": _B, "winner_tie": _TIE}
_ALL = "all"


def _parse_named(row: Row) -> SuiteItem:
    return _vote(row, row["prompt"], row["response_a"], row["response_b"], _winner(row))


def _parse_flags(row: Row) -> SuiteItem:
    """Prompt and responses are JSON lists of turns, as text; one of the three flags is 1."""
    raised = [winner for name, winner in _FLAGS.items() if row[name] == 1]
    if len(raised) != 1:
        raise MalformedRowError("winner_unknown", ", ".join(f"{name}={row[name]}" for name in _FLAGS))
    prompt, response_a, response_b = (_only_turn(row[name]) for name in ("prompt", "response_a", "response_b"))
    return _vote(row, prompt, response_a, response_b, raised[0])


def _only_turn(value: object) -> object:
    """Return the text of a JSON list with one entry; a value that is no JSON list stays as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        turns = json.loads(value)
    except ValueError:
        return value
    if not isinstance(turns, list) or len(turns) != 1:
        raise MalformedRowError("turns_differ_before_the_last", f"{len(turns)} turns")
    return turns[0]


def _parse_conversations(row: Row) -> SuiteItem:
    """Battles whose conversations differ before the last answer have no common prompt, and are left out."""
    turns_a, turns_b = list_column(row, "conversation_a"), list_column(row, "conversation_b")
    if turns_a[:-1] != turns_b[:-1]:
        raise MalformedRowError("turns_differ_before_the_last", f"{len(turns_a)} and {len(turns_b)} turns")
    return _vote(row, turns_a[:-1], turns_a[-1:], turns_b[-1:], _winner(row))


def _winner(row: Row) -> str:
    winner = row["winner"]
    name = _WINNERS.get(winner.strip().casefold()) if isinstance(winner, str) else None
    if name is None:
        raise MalformedRowError("winner_unknown", repr(winner))
    return name


def _vote(row: Row, prompt: object, response_a: object, response_b: object, winner: str) -> SuiteItem:
    comparisons = {_A: (Comparison(0, 1),), _B: (Comparison(1, 0),), _TIE: ()}[winner]
    column = next((name for name in ("source", "subset", "language") if row.get(name) is not None), "")
    return suite_item(
        prompt=prompt,
        responses=(response_a, response_b),
        subset=text_column(row, column) if column else _ALL,
        comparisons=comparisons,
        item_id=row_id(row, "id", "question_id"),
    )


def judge(scored: Sequence[ScoredItem], intervals: Intervals) -> SuiteFigures:
    """Accuracy over decided votes, as a whole and by source; `tie_separation` where there are both kinds."""
    groups = by_subset(scored)
    entries = [entry for group in groups.values() for entry in group]
    decided = {name: [entry for entry in group if entry.item.comparisons] for name, group in groups.items()}
    credits = pair_credits({name: group for name, group in decided.items() if group}, tie=0.5)
    has_both = 0 < sum(bool(entry.item.comparisons) for entry in entries) < len(entries)
    separation = (_separation(entries, intervals),) if has_both else ()
    return replace(pooled_figures(credits, intervals), sections=separation)


def _separation(entries: Sequence[ScoredItem], intervals: Intervals) -> Metric:
    """Area under the ROC curve of the margin's size; prompts are drawn with all their votes, decided ones and ties."""
    sizes = np.array([abs(entry.scores[0] - entry.scores[1]) for entry in entries])
    decided = np.array([bool(entry.item.comparisons) for entry in entries])
    _, prompts = np.unique([entry.item.prompt_id for entry in entries], return_inverse=True)
    ties = np.flatnonzero(~decided)[np.argsort(sizes[~decided])]
    left, right = (np.searchsorted(sizes[ties], sizes[decided], side=side) for side in ("left", "right"))

    def area(weights: Floats) -> float:
        """How often a decided vote's size is above a tie's, equal ones count half; NaN if all of one kind weigh 0.

        Example: decided votes of 1 and 2, ties of 0 and 1, and equal weights give 0.875.
        """
        below = np.concatenate([[0.0], np.cumsum(weights[ties])])
        whole = float(weights[decided].sum() * below[-1])
        return float(weights[decided] @ (below[left] + below[right])) / (2 * whole) if whole else np.nan

    value, num_prompts = area(np.ones(len(entries))), int(prompts.max()) + 1
    blocks = drawn_places(num_prompts, num_bootstrap=intervals.num_bootstrap, seed=intervals.seed)
    counts = (np.bincount(row, minlength=num_prompts)[prompts].astype(np.float64) for block in blocks for row in block)
    draws = np.array([area(weights) for weights in counts])
    low, high = percentile_interval(np.where(np.isnan(draws), value, draws), confidence=intervals.confidence)
    return Metric(name="tie_separation", value=value, unit="fraction", ci_low=low, ci_high=high, count=len(entries))


# This project's form, LMSYS' human preference (flags), LMSYS' conversations.
_LAYOUTS = (
    Layout(("prompt", "response_a", "response_b", "winner"), _parse_named),
    Layout(("prompt", "response_a", "response_b", *_FLAGS), _parse_flags),
    Layout(("conversation_a", "conversation_b", "winner"), _parse_conversations),
)
ARENA = Benchmark(
    name="arena",
    title="Human preference (arena votes)",
    reader=partial(read_suite, layouts=_LAYOUTS),
    judge=judge,
    tie_rule=(
        "Votes that people called a tie are left out of the score and judged by `tie_separation`; equal scores of a "
        "decided vote count as half right."
    ),
    source="Votes: Chiang et al. 2024, arXiv:2403.04132; the rule is this project's own",
)
