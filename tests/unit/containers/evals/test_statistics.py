"""Figures that decide a gate must be right to the last pair, and say how sure they are."""

import math
from typing import Any

import numpy as np
import pytest

from containers.contracts.outcome import Metric
from containers.evals.statistics import (
    accuracy_metric,
    histogram,
    margin_histogram,
    mean_metric,
    optimism_of_choice,
    pair_losses,
)


def test_a_tie_counts_as_half_right() -> None:
    assert accuracy_metric([1.0, 2.0, -1.0, 0.0], name="a", confidence=0.95).value == 0.625


def test_mean_metric_says_unit_interval_and_count() -> None:
    metric = mean_metric([1.0, 2.0, 3.0], name="m", unit="score", confidence=0.9)
    assert (metric.value, metric.unit, metric.count) == (2.0, "score", 3)
    assert metric.ci_low is not None and metric.ci_high is not None and metric.ci_low <= 2.0 <= metric.ci_high


@pytest.mark.parametrize(("num_choices", "expected"), [(2, 0.56), (10, 1.54), (50, 2.25)])
def test_the_best_of_equal_models_looks_better_by_the_largest_of_as_many_normal_values(
    num_choices: int, expected: float
) -> None:
    drawn = np.random.default_rng(3).normal(size=(20_000, num_choices)).max(axis=1).mean()
    assert drawn == pytest.approx(expected, abs=0.02)
    # Checkpoints of one training have a tenth of the variance for themselves.
    assert optimism_of_choice(1.0, num_choices=num_choices) == pytest.approx(drawn * math.sqrt(0.1), rel=0.06)


def test_pair_losses_are_log_two_at_zero_and_finite_far_away() -> None:
    assert pair_losses([0.0]) == [pytest.approx(math.log(2))]
    assert pair_losses([-1000.0, 1000.0]) == [pytest.approx(1000.0), pytest.approx(0.0)]


def test_a_histogram_counts_every_value_between_the_smallest_and_the_largest() -> None:
    found = histogram([1.0, 2.0, 2.0, 5.0], num_bins=4)
    assert (found.edges, found.counts) == ((1.0, 2.0, 3.0, 4.0, 5.0), (1, 2, 0, 1))


def test_no_bin_of_the_margin_histogram_holds_both_signs() -> None:
    histogram = margin_histogram([-0.1, 0.2, 3.0, -1.0])
    assert 0.0 in histogram.edges
    assert sum(histogram.counts) == 4
    zero = histogram.edges.index(0.0)
    assert (sum(histogram.counts[:zero]), sum(histogram.counts[zero:])) == (2, 2)


def test_the_histogram_of_ties_alone_is_no_error() -> None:
    assert sum(margin_histogram([0.0, 0.0]).counts) == 2


MARGINS = [1.0, -1.0, 1.0, 1.0, 0.0, 1.0, -1.0, 1.0] * 5
COPIES = [place for place in range(40) for _ in range(9)]


def test_copies_of_a_pair_do_not_narrow_the_interval_of_the_accuracy() -> None:
    once = accuracy_metric(MARGINS, name="accuracy", confidence=0.9, clusters=range(40))
    copies = accuracy_metric([MARGINS[place] for place in COPIES], name="accuracy", confidence=0.9, clusters=COPIES)
    assert copies.value == pytest.approx(once.value) == 27.5 / 40
    assert copies.count == 360
    assert _width(copies) == pytest.approx(_width(once))


def test_copies_of_a_value_leave_the_interval_of_the_mean_as_it_was() -> None:
    arguments: dict[str, Any] = {"name": "m", "unit": "score", "confidence": 0.9}
    once = mean_metric(MARGINS, **arguments)
    copies = mean_metric([MARGINS[place] for place in COPIES], clusters=COPIES, **arguments)
    assert (copies.value, copies.ci_low, copies.ci_high) == pytest.approx((once.value, once.ci_low, once.ci_high))
    assert _width(mean_metric([MARGINS[place] for place in COPIES], **arguments)) < _width(once) / 2


def _width(metric: Metric) -> float:
    assert metric.ci_low is not None and metric.ci_high is not None
    return metric.ci_high - metric.ci_low
