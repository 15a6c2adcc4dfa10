"""A perfect model must not look miscalibrated because there are few pairs, and a bad one must not look perfect."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from containers.evals.calibration import MIN_PROMPTS, Calibration, calibration_of
from containers.evals.suites.base import Intervals

SETTINGS = Intervals(confidence=0.95, num_bootstrap=100, seed=3)


def calibrated(margins: list[float], *, pairs_per_prompt: int = 1) -> Calibration:
    return calibration_of(margins, [str(place // pairs_per_prompt) for place in range(len(margins))], SETTINGS)


def log_odds(chance: float) -> float:
    return math.log(chance / (1 - chance))


def made(size: int, *, true_share_of_size: float = 1.0, seed: int = 0) -> list[float]:
    """Margins of a model that is right with sigmoid(share × size of the margin); a share of 1 is perfect."""
    generator = np.random.default_rng(seed)
    sizes: NDArray[np.float64] = np.abs(generator.normal(scale=2, size=size))
    right = generator.random(size) < 1 / (1 + np.exp(-true_share_of_size * sizes))
    values: list[float] = np.where(right, sizes, -sizes).tolist()
    return values


def test_the_side_that_the_model_prefers_is_judged_and_a_tie_is_half_right() -> None:
    (found,) = calibrated([log_odds(0.75)] * 3 + [-log_odds(0.75)]).bins
    assert found.mean_predicted == pytest.approx(0.75)
    assert (found.observed, found.count, found.num_prompts) == (0.75, 4, 4)
    (ties,) = calibrated([0.0] * 30).bins
    assert (ties.mean_predicted, ties.observed) == (0.5, 0.5)


def test_bins_with_few_prompts_join_the_next_and_the_last_the_one_before() -> None:
    margins = [log_odds(chance) for chance in [0.52] * 5 + [0.58] * 15 + [0.72] * 20 + [0.97] * 19]
    bins = calibrated(margins).bins
    assert [item.count for item in bins] == [20, 39]
    assert bins[1].mean_predicted == pytest.approx((20 * 0.72 + 19 * 0.97) / 39)
    whole = calibrated([log_odds(chance) for chance in [0.52] * 20 + [0.58] * 20]).bins
    assert [item.mean_predicted for item in whole] == pytest.approx([0.52, 0.58])


def test_many_pairs_of_few_prompts_make_one_bin() -> None:
    margins = [log_odds(chance) for chance in [0.52] * 100 + [0.97] * 100]
    assert len(calibrated(margins).bins) == 2
    assert len(calibrated(margins, pairs_per_prompt=20).bins) == 1


def test_every_pair_is_in_one_bin_and_every_bin_has_enough_prompts() -> None:
    bins = calibrated([*made(500), 0.0, 1e9, -1e9]).bins
    assert sum(item.count for item in bins) == 503
    assert len(bins) > 5 and min(item.num_prompts for item in bins) >= MIN_PROMPTS


def test_a_bin_has_the_interval_of_its_share_over_prompts() -> None:
    margins = [log_odds(0.9)] * 28 + [-log_odds(0.9)] * 12
    (alone,), (of_four,) = calibrated(margins).bins, calibrated(margins, pairs_per_prompt=4).bins
    exact = stats.binomtest(28, 40).proportion_ci(method="exact")
    assert (alone.low, alone.high) == pytest.approx((exact.low, exact.high), abs=0.02)
    assert of_four.low is not None and of_four.high is not None and alone.low is not None
    assert of_four.low < alone.low and of_four.high - of_four.low > 1.5 * (exact.high - exact.low)


def test_a_perfect_model_shows_what_chance_makes_and_its_error_is_near_nothing() -> None:
    found = [calibrated(made(200, seed=seed)) for seed in range(20)]
    plug_in = np.mean([item.chance.plug_in for item in found])
    assert np.mean([item.chance.perfect_mean for item in found]) == pytest.approx(plug_in, rel=0.15)
    assert np.mean([item.error.value for item in found]) < 0.4 * plug_in
    assert sum(item.error.ci_low == 0 for item in found) >= 18
    assert sum(item.chance.plug_in > item.chance.perfect_high for item in found) <= 3


def test_what_a_perfect_model_shows_is_the_mean_distance_of_a_binomial() -> None:
    found = calibrated([log_odds(0.8)] * 32 + [-log_odds(0.8)] * 8).chance
    shares = np.arange(41) / 40
    wanted = float(stats.binom.pmf(np.arange(41), 40, 0.8) @ np.abs(shares - 0.8))
    assert found.plug_in == pytest.approx(0, abs=1e-9)
    assert found.perfect_mean == pytest.approx(wanted, rel=0.1)
    assert found.perfect_high == pytest.approx(0.125, abs=0.026)


def test_a_model_that_is_much_too_sure_is_found_with_its_error_inside_the_interval() -> None:
    error = calibrated(made(1000, true_share_of_size=1 / 3)).error
    low, high = error.ci_low, error.ci_high
    assert low is not None and high is not None
    assert 0.09 < low < 0.153 < high < 0.22
    assert low < error.value < high and error.count == 1000


def test_forty_of_forty_right_do_not_prove_that_a_sure_model_is_calibrated() -> None:
    error = calibrated([50.0] * 40).error
    assert (error.value, error.ci_low) == (0.0, 0.0)
    # Of 40, none is wrong in 1 of 40 cases if 9 % are wrong.
    assert error.ci_high == pytest.approx(0.09, abs=0.015)


def test_a_sure_and_wrong_model_has_a_large_error() -> None:
    error = calibrated([-20.0] * 30).error
    assert error.value == pytest.approx(1.0, abs=1e-6)
    assert error.ci_low is not None and error.ci_low > 0.8


def test_pairs_of_one_prompt_that_are_right_together_widen_interval_and_chance() -> None:
    alone, together = made(250, seed=1), [margin for margin in made(250, seed=1) for _ in range(8)]
    found, repeated = calibrated(alone), calibrated(together, pairs_per_prompt=8)
    assert repeated.chance.perfect_mean == pytest.approx(found.chance.perfect_mean, rel=0.1)
    widths = [(item.error.ci_high or 0) - (item.error.ci_low or 0) for item in (found, repeated)]
    assert widths[1] == pytest.approx(widths[0], rel=0.2)
    independent = calibrated(together)
    assert independent.chance.perfect_mean < 0.5 * repeated.chance.perfect_mean


def test_equal_scores_for_everything_and_a_single_pair_have_figures() -> None:
    assert calibrated([0.0] * 10, pairs_per_prompt=10).error.value == 0
    lone = calibrated([1.0]).error
    assert lone.ci_low == 0 and lone.ci_high is not None and lone.ci_high > 0.5


def test_equal_pairs_and_seeds_give_equal_figures_and_another_seed_hardly_others() -> None:
    margins, prompts = made(100), [str(place) for place in range(100)]
    first = calibration_of(margins, prompts, SETTINGS)
    assert calibration_of(margins, prompts, SETTINGS) == first
    other = calibration_of(margins, prompts, Intervals(confidence=0.95, num_bootstrap=100, seed=4))
    assert other.chance != first.chance
    assert other.chance.perfect_mean == pytest.approx(first.chance.perfect_mean, rel=0.1)
    assert other.error.ci_high == pytest.approx(first.error.ci_high, rel=0.15)
