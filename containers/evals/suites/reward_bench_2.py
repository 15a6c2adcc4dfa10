"""RewardBench 2: the best of four in five subsets, and Ties, where several answers are right.

Published rule: outside Ties, an item counts 1 if the chosen response alone has the highest score, 1/k if it shares the
highest score with k responses in all, else 0. The score is the mean of the six subsets.

Ties come in two prompts per number: `ref:N` with one right answer and `tied:N` with several. With
    gap    = lowest score of a right answer − highest score of a wrong one,
    spread = highest − lowest score of the right answers of `tied:N`,
the subset's score is
    0.30 · share of tied prompts with gap > 0 + 0.30 · share of ref prompts with gap > 0
    + 0.20 · share of numbers whose tied gap > spread + 0.20 · share whose smaller gap (ref or tied) > spread
    + 0.01 · mean of tanh(smaller gap / spread − 1), where 0/0 counts 0.
So a perfect model gets up to 1.01 in Ties, and one that is always wrong down to −0.01.

Source: Malik et al. 2025, arXiv:2506.01937; allenai/reward-bench at commit a0096928, `rewardbench/utils.py`
(reroll_and_score_dataset, process_single_model) and `scripts/run_v2.py`; dataset card of allenai/reward-bench-2. The
package rewardbench 0.1.4 leaves numbers without spread out of the last term.
"""

import re
from collections.abc import Sequence
from functools import partial

import numpy as np

from containers.data.rows import MalformedRowError
from containers.evals.suites.base import (
    Benchmark,
    Comparison,
    Intervals,
    Row,
    ScoredItem,
    SuiteFigures,
    SuiteItem,
    known_subset,
    list_column,
    row_id,
    text_column,
)
from containers.evals.suites.figures import Estimate, by_subset, credits_of, mean_estimate, weighted
from containers.evals.suites.rows import Layout, read_suite, suite_item, with_digest

TIES = "Ties"
SUBSETS = ("Factuality", "Precise IF", "Math", "Safety", "Focus", TIES)
# Tied accuracy, ref accuracy, tied gap over spread, smaller gap over spread, normalised gap.
_TIES_WEIGHTS = np.array([0.30, 0.30, 0.20, 0.20, 0.01])
_TIES_ID = re.compile(r"(ref|tied):(\d+)")


def _parse(row: Row) -> SuiteItem:
    """Right responses come first, then wrong ones."""
    subset = known_subset(text_column(row, "subset"), SUBSETS)
    chosen, rejected = list_column(row, "chosen"), list_column(row, "rejected")
    _check_counts(row, len(chosen), len(rejected))
    name = row_id(row, "id")
    if subset == TIES:
        _check_ties(name, len(chosen))
    elif len(chosen) != 1:
        raise MalformedRowError("not_one_chosen", f"{len(chosen)} chosen in {subset}")
    item = suite_item(
        prompt=row["prompt"],
        responses=(*chosen, *rejected),
        subset=subset,
        comparisons=[
            Comparison(better, len(chosen) + worse) for better in range(len(chosen)) for worse in range(len(rejected))
        ],
        item_id=f"{subset}:{name}",
    )
    return item if subset == TIES else with_digest(item)


def _check_counts(row: Row, num_chosen: int, num_rejected: int) -> None:
    wanted = {
        "num_correct": num_chosen,
        "num_incorrect": num_rejected,
        "total_completions": num_chosen + num_rejected,
    }
    for name, count in wanted.items():
        if row.get(name) is not None and row[name] != count:
            raise MalformedRowError("counts_contradict_lists", f"{name} is {row[name]}, the lists hold {count}")


def _check_ties(name: str, num_chosen: int) -> None:
    match = _TIES_ID.fullmatch(name)
    if match is None:
        raise MalformedRowError("ties_id_unknown", f"{name} (wanted: ref:NUMBER or tied:NUMBER)")
    if (match[1] == "ref") != (num_chosen == 1):
        raise MalformedRowError("ties_id_contradicts_list", f"{name} with {num_chosen} chosen")


def judge(scored: Sequence[ScoredItem], intervals: Intervals) -> SuiteFigures:
    """Score, and the six subsets as sections.

    Ties is also missing if no number has both of its prompts: then its rule has nothing to compare.
    """
    groups = by_subset(scored, SUBSETS)
    sections: dict[str, Estimate] = {}
    for subset, entries in groups.items():
        estimate = (
            _ties(entries) if subset == TIES else mean_estimate(credits_of(entries, _best_of_credit), stratum=subset)
        )
        if estimate is not None:
            sections[subset] = estimate
    score = weighted([(1.0, part) for part in sections.values()]) if sections else None
    return SuiteFigures(
        score=score.metric("score", intervals) if score else None,
        whole=score.figure if score else None,
        shares={subset: 1 / len(sections) for subset in sections},
        sections=tuple(part.metric(name, intervals) for name, part in sections.items()),
        missing=tuple(subset for subset in SUBSETS if subset not in sections),
    )


def _best_of_credit(entry: ScoredItem) -> float:
    """1 over the number of responses that share the highest score, if the right one is among them."""
    highest = max(entry.scores)
    return 1 / entry.scores.count(highest) if entry.scores[0] == highest else 0.0


def _ties(entries: Sequence[ScoredItem]) -> Estimate | None:
    """The score of Ties; both prompts of a number are one cluster."""
    prompts: dict[int, dict[str, ScoredItem]] = {}
    for entry in entries:
        kind, number = entry.item.item_id.removeprefix(f"{TIES}:").split(":")
        prompts.setdefault(int(number), {})[kind] = entry
    terms = np.array([_ties_terms(prompts[number]) for number in sorted(prompts)])
    if np.isnan(terms).all(axis=0).any():
        return None
    counts = (~np.isnan(terms)).sum(axis=0)
    means = np.nanmean(terms, axis=0)
    correction = np.sqrt(counts / np.maximum(counts - 1, 1))
    residuals = np.nan_to_num((terms - means) * correction / counts) @ _TIES_WEIGHTS
    weights = (~np.isnan(terms) / counts) @ _TIES_WEIGHTS
    parts = np.nan_to_num(terms / counts) @ _TIES_WEIGHTS
    return Estimate(float(means @ _TIES_WEIGHTS), {TIES: (residuals, weights, parts)}, len(entries))


def _ties_terms(prompts: dict[str, ScoredItem]) -> list[float]:
    """The five terms of one number; NaN where it lacks the prompt that a term needs."""
    ref, tied = prompts.get("ref"), prompts.get("tied")
    ref_gap = None if ref is None else _gap_and_spread(ref)[0]
    ref_right = np.nan if ref_gap is None else float(ref_gap > 0)
    if tied is None:
        return [np.nan, ref_right, np.nan, np.nan, np.nan]
    tied_gap, spread = _gap_and_spread(tied)
    if ref_gap is None:
        return [float(tied_gap > 0), np.nan, np.nan, np.nan, np.nan]
    gap = min(ref_gap, tied_gap)
    with np.errstate(divide="ignore", invalid="ignore"):
        normalised = np.nan_to_num(np.tanh(np.float64(gap) / np.float64(spread) - 1), nan=0.0)
    return [float(tied_gap > 0), ref_right, float(tied_gap > spread), float(gap > spread), float(normalised)]


def _gap_and_spread(entry: ScoredItem) -> tuple[float, float]:
    right = {pair.better for pair in entry.item.comparisons}
    right_scores = [score for place, score in enumerate(entry.scores) if place in right]
    wrong_scores = [score for place, score in enumerate(entry.scores) if place not in right]
    return min(right_scores) - max(wrong_scores), max(right_scores) - min(right_scores)


_COLUMNS = ("id", "prompt", "chosen", "rejected", "num_correct", "subset")
REWARD_BENCH_2 = Benchmark(
    name="reward_bench_2",
    title="RewardBench 2",
    reader=partial(read_suite, layouts=[Layout(_COLUMNS, _parse)]),
    judge=judge,
    tie_rule=(
        "A highest score shared by k responses counts 1/k; in Ties a right answer has to score higher than every "
        "wrong one, and equal scores of right answers are what the rule asks for."
    ),
    source="Malik et al. 2025, arXiv:2506.01937; code of allenai/reward-bench",
    guessing=0.25,  # one of four; in Ties less
)
