"""An interval is believed: it must hold what it says, near 0 and 1, for few prompts, for votes on one prompt."""

import math

import numpy as np
import pytest
from scipy import stats

from containers.evals.intervals import (
    LinearFigure,
    clustered_mean,
    exact_interval,
    mean_interval,
    observations_per_cluster,
    share_interval,
)
from containers.evals.statistics import accuracy_metric, share_metric

# Sizes at which the design effect of two clusters, one all right and one all wrong, is rounded below their number.
ODD_SIZES = (7, 49, 98, 103, 107, 161, 187, 196, 237, 239)


def share_of(right: int, count: int) -> tuple[float, float]:
    return share_interval(clustered_mean([1.0] * right + [0.0] * (count - right)), confidence=0.95)


@pytest.mark.parametrize(("right", "count"), [(0, 1), (8, 10), (40, 40), (0, 24), (499, 500)])
def test_the_exact_interval_is_scipys(right: int, count: int) -> None:
    known = stats.binomtest(right, count).proportion_ci(0.95, method="exact")
    assert exact_interval(right, count, confidence=0.95) == pytest.approx((known.low, known.high))


@pytest.mark.parametrize(("right", "count"), [(0, 24), (1, 24), (12, 24), (24, 24), (40, 40), (1, 1)])
def test_a_share_is_inside_its_interval_which_has_a_width(right: int, count: int) -> None:
    low, high = share_of(right, count)
    assert 0 <= low <= right / count <= high <= 1
    assert low < high


def test_forty_right_of_forty_are_no_certainty() -> None:
    assert share_of(40, 40)[0] == pytest.approx(0.9064, abs=1e-4)


def test_the_interval_narrows_with_more_pairs() -> None:
    few, many = share_of(70, 100), share_of(7000, 10_000)
    assert many[1] - many[0] < (few[1] - few[0]) / 8


@pytest.mark.parametrize("size", ODD_SIZES)
def test_two_prompts_that_disagree_wholly_are_two_observations(size: int) -> None:
    credits, prompts = [1.0] * size + [0.0] * size, [0] * size + [1] * size
    found = share_metric(credits, name="share", confidence=0.95, clusters=prompts)
    assert found.ci_low == pytest.approx(0, abs=0.02) and found.ci_high == pytest.approx(1, abs=0.02)


def test_the_mean_of_equally_spread_values_has_students_interval() -> None:
    values = [-3.0, -1.0, 1.0, 3.0] * 3
    known = stats.t.interval(0.95, 11, loc=0, scale=stats.sem(values))
    assert mean_interval(clustered_mean(values), confidence=0.95) == pytest.approx(known)


def test_a_mean_that_rests_on_one_value_is_less_sure_than_student_says() -> None:
    values = [0.0] * 49 + [50.0]
    low, high = mean_interval(clustered_mean(values), confidence=0.95)
    known = stats.t.interval(0.95, 49, loc=1, scale=stats.sem(values))
    assert high - low > 1.5 * (known[1] - known[0])


def test_copies_of_a_prompt_add_nothing() -> None:
    once = clustered_mean([1.0, 0.0, 1.0, 1.0])
    copies = clustered_mean([1.0, 0.0, 1.0, 1.0] * 7, [0, 1, 2, 3] * 7)
    for interval in (share_interval, mean_interval):
        assert interval(copies, confidence=0.95) == pytest.approx(interval(once, confidence=0.95))


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_extreme_confidence_gives_finite_intervals(confidence: float) -> None:
    assert all(math.isfinite(end) for end in share_interval(clustered_mean([1.0, 0.0, 1.0]), confidence=confidence))


def test_an_interval_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        clustered_mean([])
    with pytest.raises(ValueError, match="at least one"):
        exact_interval(0, 0, confidence=0.95)


# Number of prompts, votes on each, whether all votes on a prompt agree, true share.
CELLS = [(20, 1, False, 0.5), (50, 1, False, 0.99), (200, 1, False, 0.95), (10, 20, True, 0.9), (48, 8, False, 0.98)]


@pytest.mark.parametrize(("prompts", "votes", "agree", "true"), CELLS)
def test_intervals_hold_the_true_share_as_often_as_they_say(prompts: int, votes: int, agree: bool, true: float) -> None:
    """A small case of `benchmarks.coverage`, whose table is docs/proofs/statistics.md."""
    generator, held = np.random.default_rng(7), 0
    for _ in range(1000):
        drawn = generator.random((prompts, 1 if agree else votes)) < true
        sums = np.broadcast_to(drawn, (prompts, votes)).sum(axis=1)
        residuals = (sums - sums.mean()) / (prompts * votes) * math.sqrt(prompts / (prompts - 1))
        figure = LinearFigure(float(sums.mean()) / votes, residuals, np.full(prompts, 1 / prompts))
        low, high = share_interval(figure, confidence=0.95)
        held += low <= true <= high
    assert held >= 930


@pytest.mark.parametrize(("alike", "low", "high"), [(0.0, 5.0, 8.0), (0.5, 1.5, 2.6), (1.0, 1.0, 1.05)])
def test_the_scores_tell_how_many_observations_a_prompt_is_worth(alike: float, low: float, high: float) -> None:
    drawn = np.random.default_rng(3)
    shared, own = np.repeat(drawn.normal(size=200), 8), drawn.normal(size=1600)
    scores = np.sqrt(alike) * shared + np.sqrt(1 - alike) * own
    assert low <= observations_per_cluster(scores.tolist(), np.repeat(np.arange(200), 8).tolist()) <= high


@pytest.mark.parametrize("alike", [0.0, 0.5, 1.0])
def test_a_perfect_model_with_several_pairs_a_prompt_is_no_less_sure_than_they_allow(alike: float) -> None:
    """22 prompts of 8 pairs: all right says more than 22 of 22 where the margins of a prompt are not all alike."""
    drawn = np.random.default_rng(5)
    names, held, lows = np.repeat(np.arange(22), 8).tolist(), 0, []
    for _ in range(200):
        shared, own = np.repeat(drawn.normal(size=22), 8), drawn.normal(size=176)
        margins = 2.05 + np.sqrt(alike) * shared + np.sqrt(1 - alike) * own  # 98 % are above 0
        found = accuracy_metric(margins.tolist(), name="accuracy", confidence=0.95, clusters=names)
        assert found.ci_low is not None and found.ci_high is not None
        held += found.ci_low <= 0.98 <= found.ci_high
        lows.append(found.ci_low)
    assert held >= 0.93 * 200
    assert bool(np.median(lows) > 0.9) == (alike < 0.5)
