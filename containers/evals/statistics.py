"""Figures with their uncertainty, from margins: accuracy, intervals, log loss, histogram. Pure numpy.

A margin is score(chosen) − score(rejected) of one pair: positive is right, negative wrong, zero a tie. Observations
that share something, such as several votes on one prompt, say less than as many independent ones. They form clusters,
and every interval is over clusters.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from containers.contracts.outcome import Metric
from containers.contracts.records import Histogram
from containers.evals.intervals import Floats, clustered_mean, mean_interval, observations_per_cluster, share_interval

# Correlation of the errors of two checkpoints of one training.
_LIKENESS_OF_CHECKPOINTS = 0.9


def accuracy_metric(
    margins: Sequence[float],
    *,
    name: str,
    confidence: float,
    clusters: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
) -> Metric:
    """Share of pairs ordered rightly, counted per pair, with its interval as `share_metric`.

    Example: margins [1, 2, -1, 0] give 0.625.
    """
    return share_metric(
        pair_credits(margins), name=name, confidence=confidence, clusters=clusters, weights=weights, scores=margins
    )


def pair_credits(margins: Sequence[float]) -> list[float]:
    """1 for each pair ordered rightly, 0 wrongly, 0.5 for a tie."""
    values = _array(margins)
    right: list[float] = ((values > 0) + 0.5 * (values == 0)).tolist()
    return right


def optimism_of_choice(standard_error: float, *, num_choices: int) -> float:
    """About how much too high a figure is where the best of some equal models was chosen by it.

    It is the expected largest of `num_choices` normal deviations. The checkpoints of one training err alike, with a
    correlation of 0.9: simulated, docs/proofs/statistics.md. In truth better checkpoints make it smaller.

    Args:
        standard_error: of the figure, for one model.

    Source: Blom 1958, Statistical Estimates and Transformed Beta-Variables (expected largest of normal values).
    Example: 10 checkpoints and a standard error of 6.5 points give 3.2 points.
    """
    from scipy import special

    largest = float(special.ndtri((num_choices - 0.375) / (num_choices + 0.25)))
    return standard_error * math.sqrt(1 - _LIKENESS_OF_CHECKPOINTS) * largest


def share_metric(
    credits: Sequence[float],
    *,
    name: str,
    confidence: float,
    clusters: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
    scores: Sequence[float] | None = None,
) -> Metric:
    """The mean of credits (0 wrong, 1 right, between them a tie), with the interval of `share_interval`.

    Args:
        clusters: what each credit shares with others, its prompt; None: all are independent.
        weights: of each credit; only their ratios count. None: all the same.
        scores: behind the credits, such as margins: they tell how alike the credits of a cluster are where nearly all
            are right. None: a cluster counts at least as one observation.
    """
    mean = clustered_mean(credits, clusters, weights)
    if scores is not None and clusters is not None:
        mean = replace(mean, per_cluster=observations_per_cluster(scores, clusters))
    low, high = share_interval(mean, confidence=confidence)
    return Metric(
        name=name, value=mean.value, unit="fraction", ci_low=low, ci_high=high, count=len(credits),
        num_prompts=None if clusters is None else mean.residuals.size,
    )  # fmt: skip


def mean_metric(
    values: Sequence[float],
    *,
    name: str,
    unit: str,
    confidence: float,
    clusters: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
) -> Metric:
    """The mean with its t interval (`mean_interval`); without one where it can have none.

    That is where there is one cluster, or two that are equal: what they do not show is no certainty.

    Args:
        clusters: what each value shares with others; None: all are independent.
        weights: of each value; only their ratios count. None: all the same.

    Raises:
        ValueError: there is no value.
    """
    mean = clustered_mean(values, clusters, weights)
    ends: tuple[float | None, float | None] = (None, None)
    if mean.residuals.size > 2 or mean.residuals.any():
        ends = mean_interval(mean, confidence=confidence)
    return Metric(
        name=name, value=mean.value, unit=unit, ci_low=ends[0], ci_high=ends[1], count=len(values),
        num_prompts=None if clusters is None else mean.residuals.size,
    )  # fmt: skip


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
