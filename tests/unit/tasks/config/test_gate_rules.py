"""One rule for every bound: the interval keeps it or the figure does, and a rule that guessing passes says so."""

import numpy as np
import pytest

from containers.contracts.outcome import Metric
from containers.evals.statistics import share_metric
from tasks.config.gate_rules import Bound, HeldBy, accuracy_rule, best_lower_end, chance_of_guessing
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
