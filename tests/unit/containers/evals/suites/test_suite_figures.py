"""Weighted means and their intervals."""

from collections.abc import Iterable

import numpy as np
import pytest

from containers.contracts.outcome import Metric
from containers.evals.statistics import mean_metric
from containers.evals.suites.base import Intervals
from containers.evals.suites.figures import Credits, _shares, mean_estimate, share, weighted


def width(metric: Metric) -> float:
    assert metric.ci_low is not None and metric.ci_high is not None
    return metric.ci_high - metric.ci_low


INTERVALS = Intervals(confidence=0.95, num_bootstrap=4000, seed=3)


def credits(values: Iterable[float]) -> Credits:
    """Each on a prompt of its own."""
    return [(float(value), f"prompt {place}") for place, value in enumerate(values)]


def test_a_weighted_mean_weighs_its_parts_and_counts_their_items() -> None:
    half, full = (
        mean_estimate(credits([0, 1]), stratum="a"),
        mean_estimate(credits([1, 1, 1]), stratum="b"),
    )
    metric = weighted([(1, half), (3, full)]).metric("score", INTERVALS)
    assert metric.value == 0.875
    assert metric.count == 5


def test_the_interval_of_a_mean_of_many_is_near_that_of_the_mean() -> None:
    values = np.random.default_rng(1).random(200)
    metric = mean_estimate(credits(values), stratum="a").metric("score", INTERVALS)
    plain = mean_metric(values.tolist(), name="m", unit="fraction", confidence=0.95)
    assert (metric.ci_low, metric.ci_high) == pytest.approx((plain.ci_low, plain.ci_high), abs=0.02)


def test_subsets_vary_around_their_own_means_so_that_fixed_weights_stay_fixed() -> None:
    """Half of each subset is right; as one sample, the unequal subsets would add the difference of their means."""
    easy, hard = credits([1.0] * 27 + [0.0] * 3), credits([1.0] * 3 + [0.0] * 27)
    apart = weighted([(1, mean_estimate(easy, stratum="a")), (1, mean_estimate(hard, stratum="b"))])
    together = mean_estimate(credits([value for value, _ in (*easy, *hard)]), stratum="a")
    found, wide = (estimate.metric("score", INTERVALS) for estimate in (apart, together))
    assert found.value == wide.value == 0.5
    assert width(found) < 0.75 * width(wide)


def test_all_right_and_all_wrong_is_no_certainty() -> None:
    right, wrong = mean_estimate(credits([1.0] * 30), stratum="a"), mean_estimate(credits([0.0] * 10), stratum="b")
    metric = weighted([(1, right), (1, wrong)]).metric("score", INTERVALS)
    assert metric.value == 0.5
    assert width(metric) > 0.2


def test_two_subsets_of_one_size_are_not_resampled_alike() -> None:
    """Drawn alike, right and wrong would cancel out, and the interval of their mean would be a point."""
    values = np.arange(20) % 2
    one, other = (
        mean_estimate(credits(values), stratum="a"),
        mean_estimate(credits(1 - values), stratum="b"),
    )
    metric = weighted([(1, one), (1, other)]).metric("score", INTERVALS)
    assert metric.ci_low is not None
    assert metric.ci_high is not None
    assert metric.ci_low < 0.45 < 0.55 < metric.ci_high


def test_more_items_give_a_narrower_interval() -> None:
    few, many = (share(credits([1.0, 0.0] * size), "a", INTERVALS) for size in (20, 2000))
    assert few.ci_high is not None
    assert few.ci_low is not None
    assert many.ci_high is not None
    assert many.ci_low is not None
    assert many.ci_high - many.ci_low < (few.ci_high - few.ci_low) / 5


@pytest.mark.parametrize(("by_section", "wanted"), [(True, [0.25, 0.25, 0.5]), (False, [1 / 3] * 3)])
def test_the_shares_of_subsets_in_a_score_are_those_by_which_it_weighs_them(
    by_section: bool, wanted: list[float]
) -> None:
    """Two sections: one of the subsets a (1 item) and b (3), the other of c (1)."""
    parts = {
        "first": [(1.0, mean_estimate(credits([1]), stratum="a")), (1.0, mean_estimate(credits([1] * 3), stratum="b"))],
        "second": [(1.0, mean_estimate(credits([0]), stratum="c"))],
        "empty": [],
    }
    found = _shares(parts, by_section=by_section)
    assert [found[name] for name in "abc"] == pytest.approx(wanted)
