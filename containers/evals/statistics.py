"""Figures with their uncertainty, from margins: accuracy, intervals, log loss, calibration, histogram. Pure numpy.

A margin is score(chosen) − score(rejected) of one pair: positive is right, negative wrong, zero a tie. Observations
that share something, such as several votes on one prompt, say less than as many independent ones. They form clusters,
and every interval is over clusters.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from containers.contracts.outcome import Metric
from containers.contracts.records import CalibrationBin, Histogram

Floats = NDArray[np.float64]
# Resamples drawn at once: 64 MB for a million values.
_RESAMPLED_VALUES = 8_000_000


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
    """The mean of credits (0 wrong, 1 right, between them a tie) with Wilson's interval for their effective count.

    Args:
        clusters: what each credit shares with others, its prompt; None: all are independent.
    """
    value, count = float(_array(credits).mean()), len(credits)
    effective = count if clusters is None else effective_count(credits, clusters)
    low, high = wilson_interval(value * effective, effective, confidence=confidence)
    return Metric(name=name, value=value, unit="fraction", ci_low=low, ci_high=high, count=count)


def effective_count(credits: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """Number of independent credits that say as much about the mean as these clustered ones.

    It is their number over the design effect: the variance of their mean over clusters, divided by that over credits.
    It is at most their number; if all are right, or all wrong, it is the number of clusters.

    Source: Kish 1965, Survey Sampling (design effect); Dean and Pagano 2015, J. Surv. Stat. Methodol. 3(4).
    Example: [1, 0, 1] gives 3 on three prompts; each four times over, 12 credits on three prompts, gives 2.
    """
    sums, sizes = cluster_sums(credits, clusters)
    values, num_clusters = _array(credits), sums.size
    variance = float(values.var()) / values.size
    if num_clusters in (1, values.size) or variance == 0:
        return num_clusters
    of_clusters = float(((sums - values.mean() * sizes) ** 2).sum()) / values.size**2
    design_effect = num_clusters / (num_clusters - 1) * of_clusters / variance
    return values.size / max(1.0, design_effect)


def cluster_sums(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[Floats, Floats]:
    """[C] sums and sizes of the clusters, in the order in which they first appear."""
    numbers: dict[Hashable, int] = {}
    places = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    sums: Floats = np.bincount(places, weights=_array(values)).astype(np.float64)
    return sums, np.bincount(places).astype(np.float64)


def mean_metric(
    values: Sequence[float],
    *,
    name: str,
    unit: str,
    confidence: float,
    num_bootstrap: int,
    seed: int,
    clusters: Sequence[Hashable] | None = None,
) -> Metric:
    """The mean with its percentile bootstrap interval; the same for the same seed.

    Args:
        clusters: what each value shares with others; clusters are drawn whole. None: single values are drawn.

    Raises:
        ValueError: there is no value.
    """
    if len(values) < 1:
        raise ValueError("An interval needs at least one observation.")
    sums, sizes = cluster_sums(values, range(len(values)) if clusters is None else clusters)
    places = drawn_places(sums.size, num_bootstrap=num_bootstrap, seed=seed)
    low, high = percentile_interval(means_of_resamples(sums, sizes, places), confidence=confidence)
    mean = float(_array(values).mean())
    return Metric(name=name, value=mean, unit=unit, ci_low=low, ci_high=high, count=len(values))


def wilson_interval(right: float, count: float, *, confidence: float) -> tuple[float, float]:
    """Interval of a share, within [0, 1] also for few observations and for shares of 0 and 1.

    Args:
        right: successes, 0 to `count`; may end in a half where ties count half.
        count: observations; an effective count need not be whole.
        confidence: 0.95 for a 95 % interval.

    Raises:
        ValueError: there is no observation.

    Source: Wilson 1927, J. Am. Stat. Assoc. 22(158).
    Example: 8 of 10 at 0.95 give 0.490 to 0.943.
    """
    if count < 1:
        raise ValueError("An interval needs at least one observation.")
    # Confidences of 0 and 1 are moved into the open range.
    z = NormalDist().inv_cdf(0.5 + min(max(confidence, 0.0), 1 - 1e-12) / 2)
    share, spread = right / count, z * z / count
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * float(np.sqrt(share * (1 - share) / count + spread / (4 * count)))
    return max(0.0, centre - half), min(1.0, centre + half)


def drawn_places(size: int, *, num_bootstrap: int, seed: int | Sequence[int]) -> Iterator[NDArray[np.int64]]:
    """Yield places drawn with replacement, [resamples, size] in blocks; the same for the same arguments."""
    generator = np.random.default_rng(seed)
    at_once = max(1, _RESAMPLED_VALUES // size)
    for start in range(0, num_bootstrap, at_once):
        yield generator.integers(0, size, size=(min(at_once, num_bootstrap - start), size))


def means_of_resamples(sums: Floats, sizes: Floats, blocks: Iterable[NDArray[np.int64]]) -> Floats:
    """[resamples] the mean of each: its clusters' sums over their sizes."""
    return np.concatenate([sums[places].sum(axis=1) / sizes[places].sum(axis=1) for places in blocks])


def percentile_interval(draws: Floats, *, confidence: float) -> tuple[float, float]:
    """The ends between which that share of the draws lies, with equal tails."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True)
class ClusteredDifference:
    """The difference of two models.

    Attributes:
        difference: mean over items, with its percentile bootstrap interval over prompts.
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
    differences: Sequence[float], prompts: Sequence[str], *, confidence: float, num_bootstrap: int, seed: int = 0
) -> ClusteredDifference:
    """The mean difference; prompts are drawn with all their items, because items of one prompt are alike.

    Args:
        differences: second minus first model on each item, from -1 to 1.
        prompts: the identity of each item's prompt.

    Raises:
        ValueError: there is no item.

    Source: Davison and Hinkley 1997, Bootstrap Methods and their Application, 3.8 (resampling whole clusters).
    Example: [1, 1, 0] on the prompts a, a, b has the mean 2/3; the second model is better on one of two prompts.
    """
    difference = mean_metric(
        differences,
        name="difference",
        unit="fraction",
        confidence=confidence,
        num_bootstrap=num_bootstrap,
        seed=seed,
        clusters=prompts,
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


def calibration_bins(margins: Sequence[float], *, num_bins: int = 10) -> tuple[CalibrationBin, ...]:
    """Compare how often the model is right with the probability that it predicts for this.

    The side that the model prefers is right with predicted probability sigmoid(|margin|), in [0.5, 1]; the bins divide
    that range evenly, empty ones are left out. A tie predicts 0.5 and is observed as half right.
    """
    values = _array(margins)
    predicted = 1 / (1 + np.exp(-np.abs(values)))
    observed = (values > 0) + 0.5 * (values == 0)
    bins = np.minimum(((predicted - 0.5) * 2 * num_bins).astype(int), num_bins - 1)
    return tuple(
        CalibrationBin(
            mean_predicted=float(predicted[bins == index].mean()),
            observed=float(observed[bins == index].mean()),
            count=int((bins == index).sum()),
        )
        for index in np.unique(bins)
    )


def expected_calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Mean distance of observed to predicted, weighted by the pairs in each bin."""
    total = sum(item.count for item in bins)
    return sum(item.count * abs(item.observed - item.mean_predicted) for item in bins) / total


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
