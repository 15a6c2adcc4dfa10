"""Figures with their uncertainty, from margins: accuracy, intervals, log loss, calibration, histogram. Pure numpy.

A margin is score(chosen) − score(rejected) of one pair: positive is right, negative wrong, zero a tie.
"""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from containers.contracts.outcome import Metric
from containers.contracts.records import CalibrationBin, Histogram

Floats = NDArray[np.float64]
# Resamples drawn at once: 64 MB for a million values.
_RESAMPLED_VALUES = 8_000_000


def count_right(margins: Sequence[float]) -> float:
    """How many pairs are ordered rightly; a tie counts half."""
    values = _array(margins)
    return float((values > 0).sum() + 0.5 * (values == 0).sum())


def accuracy_metric(margins: Sequence[float], *, name: str, confidence: float) -> Metric:
    """Share of pairs ordered rightly, counted per pair, with its Wilson interval.

    Example: margins [1, 2, -1, 0] give 0.625.
    """
    right, count = count_right(margins), len(margins)
    low, high = wilson_interval(right, count, confidence=confidence)
    return Metric(name=name, value=right / count, unit="fraction", ci_low=low, ci_high=high, count=count)


def mean_metric(
    values: Sequence[float], *, name: str, unit: str, confidence: float, num_bootstrap: int, seed: int
) -> Metric:
    """The mean with its percentile bootstrap interval."""
    low, high = bootstrap_interval(values, confidence=confidence, num_bootstrap=num_bootstrap, seed=seed)
    mean = float(_array(values).mean())
    return Metric(name=name, value=mean, unit=unit, ci_low=low, ci_high=high, count=len(values))


def wilson_interval(right: float, count: int, *, confidence: float) -> tuple[float, float]:
    """Interval of a share, within [0, 1] also for few observations and for shares of 0 and 1.

    Args:
        right: successes, 0 to `count`; may end in a half where ties count half.
        confidence: 0.95 for a 95 % interval.

    Raises:
        ValueError: there is no observation.

    Source: Wilson 1927, J. Am. Stat. Assoc. 22(158).
    Example: 8 of 10 at 0.95 give 0.490 to 0.943.
    """
    if count < 1:
        raise ValueError("An interval needs at least one observation.")
    z = _normal_quantile(confidence)
    share, spread = right / count, z * z / count
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * float(np.sqrt(share * (1 - share) / count + spread / (4 * count)))
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap_interval(
    values: Sequence[float], *, confidence: float, num_bootstrap: int, seed: int
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean; the same for the same seed.

    Raises:
        ValueError: there is no value.
    """
    data = _array(values)
    if data.size < 1:
        raise ValueError("An interval needs at least one observation.")
    generator = np.random.default_rng(seed)
    means: list[Floats] = []
    rows_at_once = max(1, _RESAMPLED_VALUES // data.size)
    for start in range(0, num_bootstrap, rows_at_once):
        rows = min(rows_at_once, num_bootstrap - start)
        means.append(data[generator.integers(0, data.size, size=(rows, data.size))].mean(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def pair_losses(margins: Sequence[float]) -> list[float]:
    """−log sigmoid(margin) of each pair: the Bradley-Terry loss without margin term and centring. 0 gives log 2."""
    losses: list[float] = np.logaddexp(0.0, -_array(margins)).tolist()
    return losses


def calibration_bins(margins: Sequence[float], *, num_bins: int = 10) -> tuple[CalibrationBin, ...]:
    """How often the model is right where it says that it is right with probability p.

    The side that the model prefers is right with predicted probability sigmoid(|margin|), which lies in [0.5, 1]; the
    bins cut that range evenly, empty ones are left out. A tie predicts 0.5 and is observed as half right.
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


def histogram(values: Sequence[float], *, num_bins: int = 30) -> Histogram:
    """Counts in bins of equal width from the smallest to the largest value."""
    counts, edges = np.histogram(_array(values), bins=num_bins)
    return Histogram(edges=tuple(float(edge) for edge in edges), counts=tuple(int(count) for count in counts))


def margin_histogram(margins: Sequence[float], *, num_bins: int = 30) -> Histogram:
    """Counts in bins of equal width, as far to the left of zero as to the right, so that no bin holds both signs.

    Args:
        num_bins: even, so that zero is an edge.
    """
    values = _array(margins)
    reach = float(np.abs(values).max(initial=0.0)) or 1.0
    counts, edges = np.histogram(values, bins=num_bins, range=(-reach, reach))
    return Histogram(edges=tuple(float(edge) for edge in edges), counts=tuple(int(count) for count in counts))


def _normal_quantile(confidence: float) -> float:
    """Standard deviations that hold `confidence` of a normal distribution; 0 and 1 are drawn into the open range."""
    return NormalDist().inv_cdf(0.5 + min(max(confidence, 0.0), 1 - 1e-12) / 2)


def _array(values: Sequence[float]) -> Floats:
    return np.asarray(values, dtype=np.float64)
