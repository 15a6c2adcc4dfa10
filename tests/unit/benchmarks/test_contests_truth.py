"""A small case of the simulation of contests: who wins where the truth is known."""

import pytest

from benchmarks.truth.contests import contest_cells


@pytest.mark.waits
def test_equal_suites_stop_no_better_challenger_and_a_fall_on_all_of_them_does() -> None:
    (equal,) = contest_cells(draws=40, seed=3, settings=[(2000, 0.04, 8, 300, 0.0)])
    assert equal.crowned > 0.85 and equal.vetoed < 0.15
    assert equal.crowned_before < 0.3 and equal.vetoed_before > 0.7
    (fallen,) = contest_cells(draws=40, seed=3, settings=[(2000, 0.04, 8, 300, -0.04)])
    assert fallen.crowned < 0.2 and fallen.vetoed > 0.8


def test_of_equal_models_hardly_one_is_crowned_and_the_power_that_is_said_is_true() -> None:
    (equal,) = contest_cells(draws=100, seed=3, settings=[(500, 0.0, 0, 0, 0.0)])
    assert equal.crowned <= 0.06
    (better,) = contest_cells(draws=100, seed=3, settings=[(500, round(equal.shown, 3), 0, 0, 0.0)])
    assert 0.65 < better.crowned < 0.95
