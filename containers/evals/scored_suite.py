"""A suite with its scores: the rows read, the items scored, and the comparisons as pairs with margins. No torch."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from containers.contracts.outcome import Metric
from containers.contracts.records import SamplePrediction
from containers.evals.statistics import accuracy_metric
from containers.evals.suites.base import Benchmark, Comparison, Intervals, ScoredItem, SuiteItem, SuiteRows


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """One comparison of an item, with the reward model's scores of both sides.

    Attributes:
        weight: in the figures over pairs: what the suite's score gives it, 1 on average.
    """

    item: SuiteItem
    comparison: Comparison
    score_better: float
    score_worse: float
    strength: float | None = None
    weight: float = 1.0

    @property
    def prompt_id(self) -> str:
        """Pairs of one prompt are not independent."""
        return self.item.prompt_id

    @property
    def better(self) -> str:
        """The response that should score higher."""
        return self.item.responses[self.comparison.better]

    @property
    def worse(self) -> str:
        """The response that should score lower."""
        return self.item.responses[self.comparison.worse]

    @property
    def margin(self) -> float:
        """score(better) − score(worse); positive is right."""
        return self.score_better - self.score_worse

    @property
    def length_difference(self) -> int:
        """Characters of the better response minus those of the worse one."""
        return len(self.better) - len(self.worse)

    @property
    def pair_id(self) -> str:
        """The item's id; with the places of both responses if the item has several comparisons."""
        if len(self.item.comparisons) == 1:
            return self.item.item_id
        return f"{self.item.item_id}:{self.comparison.better}>{self.comparison.worse}"

    def as_sample(self) -> SamplePrediction:
        """The pair as the report shows it."""
        return SamplePrediction.model_validate(
            {
                "prompt": self.item.prompt,
                "chosen": self.better,
                "rejected": self.worse,
                "score_chosen": self.score_better,
                "score_rejected": self.score_worse,
                "domain": self.item.subset,
            }
        )


def pair_accuracy(pairs: Sequence[ScoredPair], name: str, *, confidence: float) -> Metric:
    """Weighted share of the pairs that are ordered rightly; its interval is over prompts."""
    return accuracy_metric(
        [pair.margin for pair in pairs],
        name=name,
        confidence=confidence,
        clusters=[pair.prompt_id for pair in pairs],
        weights=[pair.weight for pair in pairs],
    )


def accuracy_by(
    pairs: Sequence[ScoredPair], group: Callable[[ScoredPair], str], *, confidence: float, order: Sequence[str] = ()
) -> tuple[Metric, ...]:
    """Accuracy of each group that has a name and a pair, in this order or sorted by name."""
    groups: dict[str, list[ScoredPair]] = defaultdict(list)
    for pair in pairs:
        if pair.weight > 0:
            groups[group(pair)].append(pair)
    names = order or sorted(filter(None, groups))
    return tuple(pair_accuracy(groups[name], name, confidence=confidence) for name in names if name in groups)


@dataclass(frozen=True)
class ScoredSuite:
    """The rows of a suite's files, and the scores of every item of which all responses fit in max_length.

    Attributes:
        strengths: strength of the preference by item id, where the data has one.
    """

    name: str
    benchmark: Benchmark
    rows: SuiteRows
    origin: str = ""
    digest: str = ""
    minimum_accuracy: float | None = None
    strengths: dict[str, float] = field(default_factory=dict)
    num_over_long: int = 0
    items: tuple[ScoredItem, ...] = ()
    pairs: tuple[ScoredPair, ...] = ()

    def with_scores(self, items: Sequence[ScoredItem], *, num_over_long: int) -> "ScoredSuite":
        """Return this suite with its scores."""
        pairs = tuple(
            ScoredPair(
                item=scored.item,
                comparison=comparison,
                score_better=scored.scores[comparison.better],
                score_worse=scored.scores[comparison.worse],
                strength=self.strengths.get(scored.item.item_id),
            )
            for scored in items
            for comparison in scored.item.comparisons
        )
        return replace(self, items=tuple(items), pairs=self._weighted(items, pairs), num_over_long=num_over_long)

    def _weighted(self, items: Sequence[ScoredItem], pairs: Sequence[ScoredPair]) -> tuple[ScoredPair, ...]:
        """The pairs with the weights that the suite's score gives them, however many comparisons an item has."""
        if not pairs:
            return ()
        # The shares alone are wanted, so nothing is resampled more than once.
        shares = self.benchmark.judge(items, Intervals(confidence=0.95, num_bootstrap=1, seed=0)).shares
        sizes = Counter(scored.item.subset for scored in items if scored.item.comparisons)
        weights = [
            (shares[pair.item.subset] / sizes[pair.item.subset] if pair.item.subset in shares else float(not shares))
            / len(pair.item.comparisons)
            for pair in pairs
        ]
        mean = sum(weights) / len(weights)
        return tuple(replace(pair, weight=weight / mean) for pair, weight in zip(pairs, weights, strict=True))

    def write_pair_scores(self, path: Path) -> None:
        """Write a row for each pair, from which every accuracy can be computed again."""
        table = {
            "pair_id": [pair.pair_id for pair in self.pairs],
            "item_id": [pair.item.item_id for pair in self.pairs],
            "prompt_id": [pair.prompt_id for pair in self.pairs],
            "subset": [pair.item.subset for pair in self.pairs],
            "cell": [pair.comparison.cell for pair in self.pairs],
            "strength": pa.array([pair.strength for pair in self.pairs], pa.float64()),
            "score_chosen": pa.array([pair.score_better for pair in self.pairs], pa.float64()),
            "score_rejected": pa.array([pair.score_worse for pair in self.pairs], pa.float64()),
            "margin": pa.array([pair.margin for pair in self.pairs], pa.float64()),
            "length_difference": pa.array([pair.length_difference for pair in self.pairs], pa.int64()),
        }
        pq.write_table(pa.table(table), path)
