"""Weighted means and their intervals."""

from collections.abc import Iterable

import numpy as np
import pytest

from containers.evals.statistics import mean_metric
from containers.evals.suites.base import Intervals
from containers.evals.suites.figures import Credits, mean_estimate, share, weighted

INTERVALS = Intervals(confidence=0.95, num_bootstrap=4000, seed=3)


def credits(values: Iterable[float]) -> Credits:
    """Each on a prompt of its own."""
    return [(float(value), f"prompt {place}") for place, value in enumerate(values)]


def test_a_weighted_mean_weighs_its_parts_and_counts_their_items() -> None:
    half, full = (
        mean_estimate(credits([0, 1]), INTERVALS, stratum="a"),
        mean_estimate(credits([1, 1, 1]), INTERVALS, stratum="b"),
    )
    metric = weighted([(1, half), (3, full)]).metric("score", INTERVALS)
    assert metric.value == 0.875
    assert metric.count == 5


def test_the_interval_of_a_mean_is_the_one_of_the_plain_bootstrap() -> None:
    values = np.random.default_rng(1).random(200)
    metric = mean_estimate(credits(values), INTERVALS, stratum="a").metric("score", INTERVALS)
    plain = mean_metric(values.tolist(), name="m", unit="fraction", confidence=0.95, num_bootstrap=4000, seed=9)
    assert (metric.ci_low, metric.ci_high) == pytest.approx((plain.ci_low, plain.ci_high), abs=0.005)


def test_subsets_are_resampled_apart_so_that_fixed_weights_stay_fixed() -> None:
    """All of one subset right, all of the other wrong: there is nothing to vary but their sizes, which are fixed."""
    right, wrong = (
        mean_estimate(credits([1.0] * 30), INTERVALS, stratum="a"),
        mean_estimate(credits([0.0] * 10), INTERVALS, stratum="b"),
    )
    metric = weighted([(1, right), (1, wrong)]).metric("score", INTERVALS)
    assert (metric.ci_low, metric.value, metric.ci_high) == (0.5, 0.5, 0.5)


def test_two_subsets_of_one_size_are_not_resampled_alike() -> None:
    """Drawn alike, right and wrong would cancel out, and the interval of their mean would be a point."""
    values = np.arange(20) % 2
    one, other = (
        mean_estimate(credits(values), INTERVALS, stratum="a"),
        mean_estimate(credits(1 - values), INTERVALS, stratum="b"),
    )
    metric = weighted([(1, one), (1, other)]).metric("score", INTERVALS)
    assert metric.ci_low is not None
    assert metric.ci_high is not None
    assert metric.ci_low < 0.45 < 0.55 < metric.ci_high


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    values = np.random.default_rng(1).random(50)
    first, again, other = (
        mean_estimate(credits(values), Intervals(0.95, 500, seed), stratum="a").metric("score", INTERVALS)
        for seed in (3, 3, 4)
    )
    assert first == again
    assert (first.ci_low, first.ci_high) != (other.ci_low, other.ci_high)


def test_more_items_give_a_narrower_interval() -> None:
    few, many = (share(credits([1.0, 0.0] * size), "a", INTERVALS) for size in (20, 2000))
    assert few.ci_high is not None
    assert few.ci_low is not None
    assert many.ci_high is not None
    assert many.ci_low is not None
    assert many.ci_high - many.ci_low < (few.ci_high - few.ci_low) / 5
