"""Slopes, areas and fitted rates are no means: leaving out cluster after cluster must tell how sure they are."""

import math

import numpy as np
import pytest

from containers.evals.intervals import clustered_mean, mean_interval
from containers.evals.jackknife import jackknife


def test_of_a_mean_it_is_the_variance_of_the_mean() -> None:
    figure = jackknife(2.0, [2.5, 2.0, 1.5])
    assert figure is not None and figure.variance == pytest.approx(1 / 3)
    assert mean_interval(figure, confidence=0.95) == pytest.approx((-0.484, 4.484), abs=1e-3)
    values = np.random.default_rng(1).exponential(size=40)
    without = (values.sum() - values) / 39
    figure, mean = jackknife(float(values.mean()), without), clustered_mean(values.tolist())
    assert figure is not None
    assert figure.residuals == pytest.approx(mean.residuals)
    assert mean_interval(figure, confidence=0.9) == pytest.approx(mean_interval(mean, confidence=0.9))


def test_of_a_figure_that_is_no_mean_it_is_near_the_delta_method() -> None:
    values = np.random.default_rng(2).normal(3, 1, size=30)
    without = [math.log(np.delete(values, place).mean()) for place in range(30)]
    figure = jackknife(math.log(values.mean()), without)
    assert figure is not None
    deviations = np.array(without) - np.mean(without)
    assert figure.variance == pytest.approx(29 / 30 * float((deviations**2).sum()))
    assert figure.variance**0.5 == pytest.approx(values.std(ddof=1) / 30**0.5 / values.mean(), rel=0.05)


@pytest.mark.parametrize("without", [[], [1.0, 2.0], [1.0, 2.0, 1.5, math.nan]], ids=["none", "two", "one undefined"])
def test_a_figure_that_rests_on_one_cluster_or_on_two_has_no_interval(without: list[float]) -> None:
    assert jackknife(1.0, without) is None
