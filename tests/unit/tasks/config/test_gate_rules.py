"""One rule for every bound: the interval keeps it or the figure does, and a rule that guessing passes says so."""

import math

import numpy as np
import pytest

from containers.contracts.outcome import Metric
from containers.evals.statistics import mean_metric, share_metric
from tasks.config.gate_rules import Bound, HeldBy, accuracy_rule, best_lower_end, chance_of_guessing, minimum_note
from tests.unit.factories.report.certificate_factory import suite

FOUND = Metric(name="score", value=0.7, unit="fraction", ci_low=0.62, ci_high=0.77, count=120, num_prompts=120)


@pytest.mark.parametrize(
    ("bound", "passed", "wanted"),
    [
        (Bound("interval", low=0.62), True, "interval from 62.0 % on"),
        (Bound("interval", low=0.65), False, "interval from 65.0 % on"),
        (Bound("figure", low=0.65), True, "figure from 65.0 % on"),
        (Bound("interval", high=0.75), False, "interval up to 75.0 %"),
        (Bound("figure", high=0.75), True, "figure up to 75.0 %"),
        (Bound("interval", low=0.62, is_open=True), False, "interval above 62.0 %"),
    ],
)
def test_a_bound_says_what_keeps_it_and_shows_figure_and_interval(bound: Bound, passed: bool, wanted: str) -> None:
    rule = bound.rule("accuracy", FOUND, on="120 pairs", absent="", unit="fraction")
    assert (rule.passed, rule.wanted, rule.found) == (passed, wanted, "70.0 % (62.0 to 77.0 %) on 120 pairs")


def test_a_figure_that_could_not_be_measured_misses_its_rule() -> None:
    rule = Bound("interval", high=0.5).rule("flips", None, absent="it could not be measured", unit="fraction")
    assert (rule.passed, rule.found) == (False, "it could not be measured")


@pytest.mark.parametrize(
    ("prompts", "minimum", "held_by"), [(24, 0.6, "figure"), (24, 0.6, "interval"), (60, 0.55, "figure")]
)
def test_the_chance_of_guessing_is_that_of_models_that_guess(prompts: int, minimum: float, held_by: HeldBy) -> None:
    right = np.random.default_rng(3).random((2000, prompts)) < 0.5
    passed = 0
    for row in right:
        found = share_metric(row.astype(float).tolist(), name="score", confidence=0.95)
        passed += Bound(held_by, low=minimum).is_kept_by(found)
    assert chance_of_guessing(minimum, prompts, held_by) == pytest.approx(passed / 2000, abs=0.025)


def test_a_rule_that_guessing_passes_often_says_so() -> None:
    rule = accuracy_rule(suite("labelled", 0.7, num_pairs=24), 0.6, "figure")
    assert rule is not None
    assert rule.passed and rule.found == "70.0 % on 24 pairs; guessing passes this in 15.4 % of cases"
    held = accuracy_rule(suite("labelled", 0.7, num_pairs=24), 0.6, "interval")
    assert held is not None and "guessing" not in held.found


def test_a_minimum_that_so_few_prompts_cannot_show_says_so() -> None:
    rule = accuracy_rule(suite("labelled", 1.0, num_pairs=12), 0.9, "interval")
    assert rule is not None
    best = best_lower_end(12)
    assert 0.6 < best < 0.75
    assert f"even without an error the interval of 12 prompts begins at {100 * best:.1f} %: hold out more" in rule.found


@pytest.mark.parametrize(("num_prompts", "minimum"), [(1, 0.5), (2, 0.5), (7, 0.0), (7, 1.0), (10, 0.61), (60, 0.55)])
def test_the_chance_of_guessing_is_exact(num_prompts: int, minimum: float) -> None:
    passing = [right for right in range(num_prompts + 1) if right / num_prompts >= minimum]
    wanted = sum(math.comb(num_prompts, right) for right in passing) / 2**num_prompts
    assert chance_of_guessing(minimum, num_prompts, "figure") == pytest.approx(wanted)


def test_guessing_is_right_less_often_where_one_of_four_is_right() -> None:
    found = suite("labelled", 0.7, num_pairs=24)
    pairs, of_four = (
        accuracy_rule(found.model_copy(update={"benchmark": name}), 0.5, "figure")
        for name in ("pairs", "reward_bench_2")
    )
    assert pairs is not None and "guessing passes this in 58.1 % of cases" in pairs.found
    assert of_four is not None and "guessing" not in of_four.found, "0.2 % of cases"


def test_an_interval_that_few_prompts_cannot_reach_is_passed_by_no_guess() -> None:
    assert chance_of_guessing(0.9, 12, "interval") == 0.0


@pytest.mark.parametrize("num_prompts", [3, 12, 200])
def test_the_best_lower_end_is_that_of_a_model_without_an_error(num_prompts: int) -> None:
    found = share_metric([1.0] * num_prompts, name="score", confidence=0.95)
    assert best_lower_end(num_prompts) == pytest.approx(found.ci_low)


@pytest.mark.parametrize(
    ("num_pairs", "num_prompts", "on"),
    [
        (1, 1, "on 1 pair;"),
        (24, 24, "on 24 pairs;"),
        (24, 6, "on 24 pairs of 6 prompts;"),
        (24, 1, "on 24 pairs of 1 prompt;"),
    ],
)
def test_a_rule_says_pairs_and_the_prompts_that_count(num_pairs: int, num_prompts: int, on: str) -> None:
    found = suite("labelled", 0.7, num_pairs=num_pairs).model_copy(update={"num_prompts": num_prompts})
    rule = accuracy_rule(found, 0.5, "figure")
    assert rule is not None
    assert on in rule.found
    chance = chance_of_guessing(0.5, num_prompts, "figure")
    assert f"guessing passes this in {100 * chance:.1f} % of cases" in rule.found


def test_a_suite_without_a_minimum_or_without_a_pair_needs_no_note() -> None:
    assert accuracy_rule(suite("labelled", 0.7, num_pairs=24), None, "figure") is None
    assert minimum_note(0.5, 0, "figure", is_single=True) == ""
    assert minimum_note(0.5, 1, "figure", is_single=True).startswith("guessing passes this in 50.0 %")
    rule = accuracy_rule(suite("labelled", None, num_pairs=24), 0.5, "figure")
    assert rule is not None
    assert (rule.passed, rule.found) == (False, "no pair was left to judge by")


@pytest.mark.parametrize(
    ("bound", "passed"),
    [
        (Bound("figure", low=0.7), True),
        (Bound("figure", low=0.7, is_open=True), False),
        (Bound("figure", high=0.7), True),
        (Bound("interval", high=0.77), True),
        (Bound("interval", low=0.62, high=0.77), True),
        (Bound("interval", low=0.63, high=0.77), False),
        (Bound("interval", low=0.62, high=0.76), False),
    ],
)
def test_a_figure_on_its_bound_keeps_it_unless_it_must_lie_above(bound: Bound, passed: bool) -> None:
    assert bound.is_kept_by(FOUND) is passed


@pytest.mark.parametrize(("values", "passed"), [([0.3], False), ([0.3, 0.3], False), ([0.3, 0.31, 0.32], True)])
def test_a_gain_on_one_or_two_prompts_passes_no_gate_that_wants_an_interval(values: list[float], passed: bool) -> None:
    gain = mean_metric(values, name="gain", unit="score", confidence=0.95)
    rule = Bound("interval", low=0.0, is_open=True).rule("reward gain", gain, absent="", unit="score")
    assert rule.passed is passed
    assert ("too few prompts" in rule.found) is not passed
    assert Bound("figure", low=0.0).is_kept_by(gain), "a gate that wants the figure alone takes it"


def test_a_figure_without_an_interval_is_held_by_itself_and_shown_alone() -> None:
    bare = FOUND.model_copy(update={"ci_low": None, "ci_high": None})
    rule = Bound("interval", low=0.7, high=0.7).rule("accuracy", bare, absent="", unit="fraction")
    assert (rule.passed, rule.found) == (True, "70.0 %")
    assert not Bound("interval", low=0.71).is_kept_by(bare)
    assert not Bound("interval", high=0.69).is_kept_by(bare)
