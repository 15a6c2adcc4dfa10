"""Two models on one suite: the difference of the suite's own score, on the items that both were judged by."""

from collections.abc import Sequence
from dataclasses import dataclass

from containers.evals.paired import PairedDifference, figure_difference
from containers.evals.suites.base import Benchmark, Intervals, ScoredItem


@dataclass(frozen=True)
class SuiteDifference:
    """The scores of both models on the same items, and their difference, second minus first."""

    first: float
    second: float
    difference: PairedDifference


def suite_difference(
    benchmark: Benchmark, second: Sequence[ScoredItem], first: Sequence[ScoredItem], *, confidence: float
) -> SuiteDifference | None:
    """The difference of the suite's score, with its interval over prompts; None where the items give no score.

    Args:
        second: items with the scores of the second model; the same items as `first`, in the same order.
    """
    # The score alone is wanted, so nothing is resampled more than once.
    intervals = Intervals(confidence=confidence, num_bootstrap=1, seed=0)
    ours, theirs = (benchmark.judge(items, intervals).whole if items else None for items in (second, first))
    if ours is None or theirs is None:
        return None
    count = len(first)
    return SuiteDifference(
        first=theirs.value,
        second=ours.value,
        difference=figure_difference(ours, theirs, count=count, confidence=confidence),
    )
