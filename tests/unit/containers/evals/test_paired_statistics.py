"""The figures that move a champion, against formulas written down anew."""

import math
import random
import statistics
from collections.abc import Mapping, Sequence

import pytest

from containers.contracts.outcome import Metric
from containers.evals.intervals import LinearFigure, mean_end, mean_interval
from containers.evals.paired import clustered_difference, figure_difference, mcnemar_p_value
from containers.evals.suites.figures import mean_estimate, weighted


def paired_difference(differences: list[float], *, confidence: float) -> Metric:
    """Each item with a prompt of its own."""
    prompts = [str(number) for number in range(len(differences))]
    return clustered_difference(differences, prompts, confidence=confidence).difference


def _exact_binomial(better: int, worse: int) -> float:
    """Twice the smaller tail of a fair coin, at most 1."""
    tosses = better + worse
    tail = sum(math.comb(tosses, count) for count in range(min(better, worse) + 1)) / 2**tosses
    return min(1.0, 2 * tail)


@pytest.mark.parametrize(("better", "worse"), [(8, 1), (1, 8), (5, 5), (64, 33), (235, 78), (6, 0), (5, 0), (1, 0)])
def test_mcnemars_test_is_the_exact_binomial_one(better: int, worse: int) -> None:
    assert mcnemar_p_value(better, worse) == pytest.approx(_exact_binomial(better, worse), rel=1e-9)


def test_five_wins_without_a_loss_are_no_significant_win_but_six_are() -> None:
    assert mcnemar_p_value(5, 0) > 0.05 > mcnemar_p_value(6, 0)


def test_models_that_never_differ_are_not_told_apart() -> None:
    assert mcnemar_p_value(0, 0) == 1
    found = paired_difference([0.0] * 200, confidence=0.95)
    assert found.value == 0
    # If more than 1.8 % of prompts differed, 200 would show one in 97.5 % of cases.
    assert found.ci_high == -(found.ci_low or 0) == pytest.approx(1 - 0.025 ** (1 / 200))


def test_twenty_equal_items_do_not_rule_out_a_fall_of_ten_points() -> None:
    found = clustered_difference([0.0] * 20, [str(place) for place in range(20)], confidence=0.95)
    assert mean_interval(found.figure, confidence=0.95)[0] < -0.10
    assert mean_end(found.figure, alpha=0.025) > 0.10


def _in_subsets(sizes: Sequence[int], wrong: Mapping[int, int]) -> LinearFigure:
    """The mean of subsets that are all right but for so many items of a subset."""
    parts = [
        (1.0, mean_estimate([(float(n >= wrong.get(at, 0)), f"{at} {n}") for n in range(size)], stratum=str(at)))
        for at, size in enumerate(sizes)
    ]
    return weighted(parts).figure


@pytest.mark.parametrize("small", [1, 2, 3])
def test_a_subset_of_a_few_items_convicts_no_model(small: int) -> None:
    """One item in a subset of one moves a mean of four subsets by 25 points, and says nothing beyond chance."""
    before, after = ({0: 20, 1: 24, 2: 18, 3: 0}, {0: 21, 1: 23, 2: 19, 3: small})
    first, second = (_in_subsets((200, 200, 200, small), wrong) for wrong in (before, after))
    found = figure_difference(second, first, count=600 + small, confidence=0.95)
    assert found.difference.value < -0.24
    assert mean_end(found.figure, alpha=0.025) > 0, "the fall is not beyond chance"
    assert mean_interval(found.figure, confidence=0.95)[0] < -0.25, "and none is ruled out"


def test_a_fall_on_every_item_of_a_subset_that_tells_is_seen() -> None:
    first, second = _in_subsets((200, 200, 30), {0: 20}), _in_subsets((200, 200, 30), {0: 20, 2: 30})
    found = figure_difference(second, first, count=430, confidence=0.95)
    assert mean_end(found.figure, alpha=0.025) < -0.2


def test_the_interval_is_near_the_normal_one_on_many_items() -> None:
    rng = random.Random(3)  # noqa: S311  (data, not secrets)
    differences = [rng.choice([1.0, 0.0, 0.0, 0.0, -1.0, -0.5, 0.5]) for _ in range(2000)]
    found = paired_difference(differences, confidence=0.95)
    mean = statistics.fmean(differences)
    half = 1.95996 * statistics.pstdev(differences) / math.sqrt(len(differences))
    assert found.value == pytest.approx(mean)
    assert (found.ci_low, found.ci_high) == (pytest.approx(mean - half, abs=2e-3), pytest.approx(mean + half, abs=2e-3))


def test_pairing_is_used_models_that_agree_on_most_items_have_a_narrow_interval() -> None:
    agree = paired_difference([1.0] * 10 + [0.0] * 990, confidence=0.95)
    assert agree.ci_low is not None and agree.ci_high is not None
    # Two independent samples with accuracies of 70 % and 71 % would have an interval of 8 points.
    assert agree.ci_high - agree.ci_low < 0.02


def test_the_same_items_give_the_same_interval() -> None:
    items = [1.0, 0.0, -1.0, 0.0, 0.5] * 20
    once, again = (paired_difference(items, confidence=0.9) for _ in range(2))
    assert once == again


def test_no_item_is_no_figure() -> None:
    with pytest.raises(ValueError, match="at least one"):
        paired_difference([], confidence=0.95)
