"""Figures that decide a gate must be right to the last pair, and say how sure they are."""

import math
from typing import Any

import numpy as np
import pytest

from containers.contracts.outcome import Metric
from containers.evals.statistics import (
    accuracy_metric,
    calibration_bins,
    effective_count,
    expected_calibration_error,
    histogram,
    margin_histogram,
    mean_metric,
    pair_losses,
    wilson_interval,
)


def interval_of_mean(values: list[float], *, confidence: float, num_bootstrap: int, seed: int) -> tuple[float, float]:
    found = mean_metric(values, name="m", unit="", confidence=confidence, num_bootstrap=num_bootstrap, seed=seed)
    assert found.ci_low is not None
    assert found.ci_high is not None
    return found.ci_low, found.ci_high


def test_a_tie_counts_as_half_right() -> None:
    assert accuracy_metric([1.0, 2.0, -1.0, 0.0], name="a", confidence=0.95).value == 0.625


def test_wilson_interval_agrees_with_the_published_formula() -> None:
    assert wilson_interval(8, 10, confidence=0.95) == pytest.approx((0.4901624715, 0.9433178485))


@pytest.mark.parametrize("right", [0, 1, 12, 24])
def test_wilson_interval_stays_in_the_unit_range_and_holds_the_share(right: int) -> None:
    low, high = wilson_interval(right, 24, confidence=0.95)
    assert 0 <= low <= right / 24 <= high <= 1
    assert low < high


def test_wilson_interval_narrows_with_more_pairs() -> None:
    few, many = wilson_interval(70, 100, confidence=0.95), wilson_interval(7000, 10000, confidence=0.95)
    assert many[1] - many[0] < (few[1] - few[0]) / 8


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_extreme_confidence_gives_finite_intervals(confidence: float) -> None:
    assert all(math.isfinite(end) for end in wilson_interval(3, 10, confidence=confidence))


def test_an_interval_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        wilson_interval(0, 0, confidence=0.95)
    with pytest.raises(ValueError, match="at least one"):
        interval_of_mean([], confidence=0.95, num_bootstrap=100, seed=1)


def test_bootstrap_interval_is_about_two_standard_errors_wide_and_repeatable() -> None:
    values = np.random.default_rng(3).normal(1.0, 2.0, size=400).tolist()
    low, high = interval_of_mean(values, confidence=0.95, num_bootstrap=2000, seed=5)
    assert low < float(np.mean(values)) < high
    assert high - low == pytest.approx(2 * 1.96 * 2.0 / 20, rel=0.15)
    assert interval_of_mean(values, confidence=0.95, num_bootstrap=2000, seed=5) == (low, high)
    assert interval_of_mean(values, confidence=0.95, num_bootstrap=2000, seed=6) != (low, high)


def test_bootstrap_of_a_large_sample_is_cut_into_parts_that_fit_in_memory() -> None:
    values = np.random.default_rng(0).normal(size=1_000_000).tolist()
    low, high = interval_of_mean(values, confidence=0.9, num_bootstrap=20, seed=1)
    assert low < high < 0.01


def test_mean_metric_says_unit_interval_and_count() -> None:
    metric = mean_metric([1.0, 2.0, 3.0], name="m", unit="score", confidence=0.9, num_bootstrap=200, seed=0)
    assert (metric.value, metric.unit, metric.count) == (2.0, "score", 3)
    assert metric.ci_low is not None and metric.ci_high is not None and metric.ci_low <= 2.0 <= metric.ci_high


def test_pair_losses_are_log_two_at_zero_and_finite_far_away() -> None:
    assert pair_losses([0.0]) == [pytest.approx(math.log(2))]
    assert pair_losses([-1000.0, 1000.0]) == [pytest.approx(1000.0), pytest.approx(0.0)]


def test_calibration_judges_the_side_that_the_model_prefers() -> None:
    bins = calibration_bins([math.log(3), math.log(3), math.log(3), -math.log(3)])
    assert len(bins) == 1
    assert bins[0].mean_predicted == pytest.approx(0.75)
    assert (bins[0].observed, bins[0].count) == (0.75, 4)
    assert expected_calibration_error(bins) == pytest.approx(0.0)


def test_ten_bins_divide_one_half_to_one_evenly() -> None:
    sure = (0.52, 0.58, 0.97)
    bins = calibration_bins([math.log(chance / (1 - chance)) for chance in sure])
    assert [item.mean_predicted for item in bins] == pytest.approx(sure)


def test_a_sure_and_wrong_model_has_a_large_calibration_error() -> None:
    assert expected_calibration_error(calibration_bins([-20.0] * 10)) == pytest.approx(1.0, abs=1e-6)


def test_every_pair_falls_into_one_calibration_bin() -> None:
    margins = np.random.default_rng(1).normal(scale=3, size=500).tolist()
    margins += [0.0, 1e9, -1e9]
    assert sum(item.count for item in calibration_bins(margins)) == 503


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
    plain = accuracy_metric(MARGINS, name="accuracy", confidence=0.9)
    copies = accuracy_metric([MARGINS[place] for place in COPIES], name="accuracy", confidence=0.9, clusters=COPIES)
    assert once == plain
    assert copies.value == pytest.approx(once.value) == 27.5 / 40
    assert copies.count == 360
    assert _width(once) < _width(copies) < 1.1 * _width(once)


def test_copies_of_a_value_leave_the_interval_of_the_mean_as_it_was() -> None:
    arguments: dict[str, Any] = {"name": "m", "unit": "score", "confidence": 0.9, "num_bootstrap": 500, "seed": 3}
    once = mean_metric(MARGINS, **arguments)
    copies = mean_metric([MARGINS[place] for place in COPIES], clusters=COPIES, **arguments)
    assert (copies.value, copies.ci_low, copies.ci_high) == pytest.approx((once.value, once.ci_low, once.ci_high))
    assert _width(mean_metric([MARGINS[place] for place in COPIES], **arguments)) < _width(once) / 2


def test_where_all_are_right_the_prompts_are_counted_and_not_the_pairs() -> None:
    assert effective_count([1.0] * 90, [place // 9 for place in range(90)]) == 10


def test_votes_that_contradict_each_other_on_every_prompt_are_worth_no_more_than_themselves() -> None:
    assert effective_count([1.0, 0.0] * 10, [place // 2 for place in range(20)]) == 20


def test_one_prompt_is_one_observation_however_often_it_was_asked() -> None:
    assert effective_count([1.0, 1.0, 0.0], ["a", "a", "a"]) == 1


def _width(metric: Metric) -> float:
    assert metric.ci_low is not None and metric.ci_high is not None
    return metric.ci_high - metric.ci_low
