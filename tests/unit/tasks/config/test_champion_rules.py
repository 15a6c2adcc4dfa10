"""A champion goes only for a challenger that is better beyond chance and worse nowhere that counts."""

import pytest

from containers.contracts.champions import Comparison, Contest
from tasks.config.retrain import RetrainRules, judgement, leads, wins
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
    comparison = _comparison(contest(64, 33, both=287), contest(0, 12, both=88, name="safety", budget=0.02))
    assert not wins(comparison)
    text = judgement(comparison)
    assert "falls on safety by 12.0 points, beyond chance by at least 6.5 points (allowed are 2.0 points)" in text


@pytest.mark.parametrize("budget", [0.03, 0.02], ids=["within the budget", "beyond it, which may be chance"])
def test_a_fall_that_may_be_chance_stops_no_challenger(budget: float) -> None:
    assert wins(_comparison(contest(64, 33, both=287), contest(0, 3, both=97, name="safety", budget=budget)))


@pytest.mark.parametrize(("both", "wins_"), [(197, False), (2997, True)])
def test_where_a_fall_is_to_be_ruled_out_few_items_are_not_enough(both: int, wins_: bool) -> None:
    safety = contest(2, 1, both=both, name="safety", budget=0.005, must_rule_out=True)
    comparison = _comparison(contest(64, 33, both=287), safety)
    assert wins(comparison) is wins_
    assert ("a fall on safety by 1.2 points is not ruled out" in judgement(comparison)) is not wins_


def test_a_win_by_the_scores_of_its_own_teacher_moves_nothing() -> None:
    comparison = _comparison(contest(64, 33, both=287)).model_copy(update={"judged_by_teacher": True})
    assert leads(comparison) and not wins(comparison)
    text = judgement(comparison)
    assert text.startswith("version 1 stays champion until a person decides: version 2 wins, but by the scores of")
    assert "rlhf promote --model policy --version 2" in text


def test_a_win_of_a_policy_that_was_trained_on_pairs_is_not_said_to_be_by_its_teacher() -> None:
    of_pairs = {"judged_by_teacher": True, "trained_on_pairs": True}
    comparison = _comparison(contest(64, 33, both=287)).model_copy(update=of_pairs)
    assert leads(comparison) and not wins(comparison)
    text = judgement(comparison)
    assert "trained against" not in text
    assert "If that learned from the same pairs as the policy, it cannot see what they got wrong." in text
    assert "rlhf promote --model policy --version 2" in text


def _suite(name: str, at_least: float | None) -> Contest:
    return contest(0, 0, both=100, name=name, budget=0.05).model_copy(update={"at_least": at_least})


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ({"A": -0.018, "B": -0.024}, "Falls of up to 2.4 points on B and 1.8 on A are not excluded (each one-sided"),
        ({"A": -0.018, "B": 0.003}, "A fall of up to 1.8 points on A is not excluded (each one-sided at 95.0 %)."),
        (
            {"A": -0.01, "B": -0.05, "C": -0.02, "D": -0.03, "E": -0.011},
            "Falls of up to 5.0 points on B, 3.0 on D, 2.0 on C and smaller ones on 2 more are not excluded",
        ),
    ],
)
@pytest.mark.parametrize("by_teacher", [False, True])
def test_a_win_says_which_falls_are_not_excluded(ends: dict[str, float], said: str, by_teacher: bool) -> None:
    suites = [_suite(name, end) for name, end in ends.items()]
    comparison = _comparison(contest(64, 33, both=287), *suites).model_copy(update={"judged_by_teacher": by_teacher})
    assert leads(comparison)
    assert said in judgement(comparison)


@pytest.mark.parametrize("end", [0.002, 0.0, -0.0004, None])
def test_a_win_without_a_possible_fall_speaks_of_none(end: float | None) -> None:
    assert "excluded" not in judgement(_comparison(contest(64, 33, both=287), _suite("A", end)))


def test_what_the_frozen_set_could_have_shown_is_said_where_nothing_was_found() -> None:
    text = judgement(_comparison(contest(40, 33, both=427)))
    assert "such data show a true difference of +4.8 points or more in 80 % of cases" in text


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
