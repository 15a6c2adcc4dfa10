"""Scored pairs made by hand, for tests of figures that need no model."""

from collections.abc import Sequence

from containers.evals.scored_suite import ScoredPair
from containers.evals.suites.base import Comparison, SuiteItem


def scored_pair(place: int, better: str, worse: str, scores: tuple[float, float]) -> ScoredPair:
    prompt = ({"role": "user", "content": f"question {place}"},)
    item = SuiteItem(f"item-{place}", prompt, (better, worse), "all", (Comparison(0, 1),))
    return ScoredPair(item=item, comparison=Comparison(0, 1), score_better=scores[0], score_worse=scores[1])


def pairs_of_lengths(lengths: Sequence[tuple[int, int]], margins: Sequence[float]) -> list[ScoredPair]:
    """Pairs of texts of so many characters (better, worse) with these margins."""
    return [
        scored_pair(place, "b" * better, "w" * worse, (margin, 0.0))
        for place, ((better, worse), margin) in enumerate(zip(lengths, margins, strict=True))
    ]
