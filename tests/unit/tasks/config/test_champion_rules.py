"""A champion goes only for a challenger that is better beyond chance and worse nowhere that counts."""

import pytest

from containers.contracts.champions import Comparison, Contest
from tasks.config.retrain import RetrainRules, judgement, wins
from tests.unit.factories.champion_factory import contest


def _comparison(*contests: Contest) -> Comparison:
    return Comparison(champion=1, challenger=2, contests=contests, confidence=0.95, alpha=0.05)


def test_a_significant_win_moves_the_champion_and_says_by_how_much() -> None:
    comparison = _comparison(contest(64, 33, both=287))
    assert wins(comparison)
    text = judgement(comparison)
    assert text.startswith("version 2 is champion now")
    assert "+8.1 points" in text and "p = 0.0022" in text


@pytest.mark.parametrize(
    ("better", "worse", "why"),
    [
        (40, 33, "is not better beyond chance"),
        (33, 40, "is not better beyond chance"),
        (33, 64, "is worse beyond chance"),
        (5, 0, "is not better beyond chance"),  # the interval is above 0, McNemar's test is not convinced
        (0, 0, "is not better beyond chance"),
    ],
)
def test_anything_less_leaves_the_champion_and_says_why(better: int, worse: int, why: str) -> None:
    comparison = _comparison(contest(better, worse, both=300))
    assert not wins(comparison)
    assert judgement(comparison).startswith(f"version 1 stays champion: version 2 {why}")


def test_a_win_with_a_fall_beyond_the_budget_of_a_pair_file_leaves_the_champion() -> None:
    comparison = _comparison(contest(64, 33, both=287), contest(0, 3, both=97, name="safety", budget=0.02))
    assert not wins(comparison)
    assert "falls on safety by 3.0 points, allowed are 2.0" in judgement(comparison)


def test_a_fall_within_the_budget_is_allowed() -> None:
    assert wins(_comparison(contest(64, 33, both=287), contest(0, 3, both=97, name="safety", budget=0.03)))


def test_a_pair_file_of_which_nothing_is_left_decides_nothing() -> None:
    empty = Contest(name="safety", measure="accuracy", count=0, budget=0.0)
    assert wins(_comparison(contest(64, 33), empty))


def test_without_a_clean_frozen_pair_the_champion_stays() -> None:
    comparison = _comparison(Contest(name="the frozen pairs", measure="accuracy", count=0, seen_in_training=380))
    assert not wins(comparison)
    assert "no data are left that neither was trained on" in judgement(comparison)


def test_a_pair_file_may_have_a_budget_of_its_own() -> None:
    rules = RetrainRules(regression_budgets={"safety": 0.0})
    assert (rules.budget_of("safety"), rules.budget_of("other")) == (0.0, 0.01)
