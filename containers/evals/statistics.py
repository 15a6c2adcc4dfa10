"""Figures with their uncertainty, from margins: accuracy, intervals, log loss, histogram. Pure numpy.

A margin is score(chosen) − score(rejected) of one pair: positive is right, negative wrong, zero a tie. Observations
that share something, such as several votes on one prompt, say less than as many independent ones. They form clusters,
and every interval is over clusters.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from containers.contracts.outcome import Metric
from containers.contracts.records import Histogram
from containers.evals.intervals import Floats, cluster_sums, clustered_mean, mean_interval, share_interval


def accuracy_metric(
    margins: Sequence[float], *, name: str, confidence: float, clusters: Sequence[Hashable] | None = None
) -> Metric:
    """Share of pairs ordered rightly, counted per pair, with its interval as `share_metric`.

    Example: margins [1, 2, -1, 0] give 0.625.
    """
    values = _array(margins)
    right = (values > 0) + 0.5 * (values == 0)
    return share_metric(right.tolist(), name=name, confidence=confidence, clusters=clusters)


def share_metric(
    credits: Sequence[float], *, name: str, confidence: float, clusters: Sequence[Hashable] | None = None
) -> Metric:
    """The mean of credits (0 wrong, 1 right, between them a tie), with the interval of `share_interval`.

    Args:
        clusters: what each credit shares with others, its prompt; None: all are independent.
    """
    mean = clustered_mean(credits, clusters)
    low, high = share_interval(mean, confidence=confidence)
    return Metric(name=name, value=mean.value, unit="fraction", ci_low=low, ci_high=high, count=len(credits))


def mean_metric(
    values: Sequence[float], *, name: str, unit: str, confidence: float, clusters: Sequence[Hashable] | None = None
) -> Metric:
    """The mean with its t interval (`mean_interval`).

    Args:
        clusters: what each value shares with others; None: all are independent.

    Raises:
        ValueError: there is no value.
    """
    mean = clustered_mean(values, clusters)
    low, high = mean_interval(mean, confidence=confidence)
    return Metric(name=name, value=mean.value, unit=unit, ci_low=low, ci_high=high, count=len(values))


@dataclass(frozen=True)
class ClusteredDifference:
    """The difference of two models.

    Attributes:
        difference: mean over items, with its t interval over prompts.
        num_prompts: different prompts among the items.
        num_better: prompts on which the second model does better in sum.
        num_worse: prompts on which it does worse.
        p_value: exact McNemar test over these prompts.
    """

    difference: Metric
    num_prompts: int
    num_better: int
    num_worse: int
    p_value: float


def clustered_difference(
    differences: Sequence[float], prompts: Sequence[str], *, confidence: float
) -> ClusteredDifference:
    """The mean difference, with its interval over prompts, because items of one prompt are alike.

    Args:
        differences: second minus first model on each item, from -1 to 1.
        prompts: the identity of each item's prompt.

    Raises:
        ValueError: there is no item.

    Example: [1, 1, 0] on the prompts a, a, b has the mean 2/3; the second model is better on one of two prompts.
    """
    mean = clustered_mean(differences, prompts)
    low, high = mean_interval(mean, confidence=confidence)
    # Of two shares: no more than one.
    difference = Metric(
        name="difference",
        value=mean.value,
        unit="fraction",
        ci_low=max(low, -1.0),
        ci_high=min(high, 1.0),
        count=len(differences),
    )
    sums, _ = cluster_sums(differences, prompts)
    num_better, num_worse = int((sums > 0).sum()), int((sums < 0).sum())
    return ClusteredDifference(
        difference=difference,
        num_prompts=sums.size,
        num_better=num_better,
        num_worse=num_worse,
        p_value=mcnemar_p_value(num_better, num_worse),
    )


def mcnemar_p_value(num_better: int, num_worse: int) -> float:
    """Probability that two equal models differ at least this unevenly on the items where only one of them is right.

    Exact and two-sided; 1 if they never differ.

    Source: McNemar 1947, Psychometrika 12(2); exact form: binomial with p = 1/2.
    Example: 8 better and 1 worse give 0.039.
    """
    from scipy import stats  # type: ignore[import-untyped]  # heavy: a second, and only a comparison needs it

    if num_better + num_worse == 0:
        return 1.0
    return float(stats.binomtest(num_better, num_better + num_worse, 0.5).pvalue)


def pair_losses(margins: Sequence[float]) -> list[float]:
    """−log sigmoid(margin) of each pair: the Bradley-Terry loss without margin term and centring. 0 gives log 2."""
    losses: list[float] = np.logaddexp(0.0, -_array(margins)).tolist()
    return losses


def histogram(values: Sequence[float], *, num_bins: int = 30, ends: tuple[float, float] | None = None) -> Histogram:
    """Counts in bins of equal width between `ends`; None: from the smallest to the largest value."""
    counts, edges = np.histogram(_array(values), bins=num_bins, range=ends)
    return Histogram(edges=tuple(float(edge) for edge in edges), counts=tuple(int(count) for count in counts))


def margin_histogram(margins: Sequence[float]) -> Histogram:
    """Counts in 30 bins of equal width, symmetric around zero: zero is an edge, so no bin holds both signs."""
    reach = max(map(abs, margins), default=0.0) or 1.0
    return histogram(margins, num_bins=30, ends=(-reach, reach))


def _array(values: Sequence[float]) -> Floats:
    return np.asarray(values, dtype=np.float64)
