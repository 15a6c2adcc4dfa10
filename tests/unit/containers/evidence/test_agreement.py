"""A reward that orders answers as its judge does can be trained on; how sure that is, the interval says."""

import numpy as np
import pytest
from scipy import stats

from containers.evidence.agreement import rank_agreement


def test_it_is_spearmans_with_the_interval_of_bonett_and_wright() -> None:
    generator = np.random.default_rng(3)
    one = generator.normal(size=50)
    other = one + 0.5 * generator.normal(size=50)
    found = rank_agreement(one.tolist(), other.tolist())
    assert found is not None
    assert found.value == pytest.approx(stats.spearmanr(one, other).statistic)
    width = 1.959964 * np.sqrt((1 + found.value**2 / 2) / 47)
    assert found.ci_low == pytest.approx(np.tanh(np.arctanh(found.value) - width), abs=1e-6)
    assert found.ci_high == pytest.approx(np.tanh(np.arctanh(found.value) + width), abs=1e-6)
    assert found.count == 50


def test_its_interval_holds_the_truth_in_about_95_of_100_draws() -> None:
    """Normal values with a correlation of 0.7 have a rank correlation of 6/pi asin(0.35)."""
    generator, truth, held = np.random.default_rng(5), 6 / np.pi * np.arcsin(0.35), 0
    for _ in range(400):
        one = generator.normal(size=60)
        other = 0.7 * one + np.sqrt(1 - 0.49) * generator.normal(size=60)
        found = rank_agreement(one.tolist(), other.tolist())
        assert found is not None and found.ci_low is not None and found.ci_high is not None
        held += found.ci_low <= truth <= found.ci_high
    assert 0.92 <= held / 400 <= 0.98


@pytest.mark.parametrize(
    ("one", "other"), [([1.0] * 20, list(range(20))), (list(range(20)), [0.0] * 20), ([1.0, 2.0], [1.0, 2.0])]
)
def test_a_constant_value_or_few_answers_say_nothing(one: list[float], other: list[float]) -> None:
    assert rank_agreement(one, other) is None


def test_the_same_order_is_1() -> None:
    found = rank_agreement(list(range(10)), [value**3 for value in range(10)])
    assert found is not None and found.value == pytest.approx(1)
