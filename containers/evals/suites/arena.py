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
from numpy.typing import NDArray

from containers.contracts.outcome import Metric
from containers.data.rows import MalformedRowError
from containers.evals.intervals import Floats, share_interval
from containers.evals.jackknife import jackknife
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
Bools = NDArray[np.bool_]
Places = NDArray[np.int64]


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
    """Area under the ROC curve of the margin's size; its interval is over prompts with all their votes."""
    sizes = np.array([abs(entry.scores[0] - entry.scores[1]) for entry in entries])
    decided = np.array([bool(entry.item.comparisons) for entry in entries])
    _, prompts = np.unique([entry.item.prompt_id for entry in entries], return_inverse=True)
    won = _num_below(sizes[decided], sizes[~decided])
    value = float(won.mean() / (~decided).sum())
    figure = jackknife(value, _areas_without_each(sizes, decided, prompts, won), num_strata=2)
    low = high = None
    if figure is not None:
        # Ties and decided votes vary apart: the fewer prompts of the two tell as much as the figure can be known by.
        fewer = min(np.unique(prompts[kind]).size for kind in (decided, ~decided))
        figure = replace(figure, per_cluster=fewer / figure.residuals.size)
        low, high = share_interval(figure, confidence=intervals.confidence)
    return Metric(
        name="tie_separation", value=value, unit="fraction", ci_low=low, ci_high=high, count=len(entries),
        num_prompts=int(prompts.max()) + 1,
    )  # fmt: skip


def _num_below(sizes: Floats, others: Floats) -> Floats:
    """[N] how many of the others are smaller than each size; equal ones count half."""
    ranked = np.sort(others)
    left, right = (np.searchsorted(ranked, sizes, side=side) for side in ("left", "right"))
    return (left + right) / 2


def _areas_without_each(sizes: Floats, decided: Bools, prompts: Places, won: Floats) -> Floats:
    """[C] the area without each prompt; NaN where no tie or no decided vote would be left.

    Args:
        won: ties with a smaller size than each decided vote.

    Example: decided votes of 1 and 2 and ties of 0 and 1, each of its own prompt, give 1, 0.75, 0.75 and 1.
    """
    num_prompts, (decided_of, tie_of) = int(prompts.max()) + 1, (prompts[decided], prompts[~decided])
    lost_ties = decided.sum() - _num_below(sizes[~decided], sizes[decided])
    gone = np.bincount(decided_of, won, num_prompts) + np.bincount(tie_of, lost_ties, num_prompts)
    for prompt in np.intersect1d(decided_of, tie_of):  # its own votes were taken off twice
        own = prompts == prompt
        gone[prompt] -= _num_below(sizes[own & decided], sizes[own & ~decided]).sum()
    left = [
        kind.sum() - np.bincount(of, minlength=num_prompts) for kind, of in ((decided, decided_of), (~decided, tie_of))
    ]
    num_pairs = (left[0] * left[1]).astype(np.float64)
    areas: Floats = np.where(num_pairs > 0, (won.sum() - gone) / np.maximum(num_pairs, 1), np.nan)
    return areas


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
