"""Read by whoever is about to spend GPU days: everything on one page, nothing from outside, foreign text escaped."""

import re

import pytest

from containers.contracts.certificate import TEST_SUITE, CalibrationBin, Certificate, ScoreParity
from containers.contracts.outcome import Metric
from containers.contracts.records import GateVerdict
from containers.document.html import page_html
from containers.report.certificate_page import certificate_page
from containers.report.figures import calibration_plot
from tasks.config.gate_rules import accuracy_rule
from tasks.config.gates import RewardModelGate
from tests.unit.factories.report.certificate_records import reward_model_certificate
from tests.unit.factories.report.report_records import gate

ATTACK = "<script>alert(1)</script>"


def certificate_html(certificate: Certificate, verdict: GateVerdict | None = None) -> str:
    return page_html(certificate_page(certificate, verdict))


def _text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<(style|svg).*?</\1>", "", html, flags=re.DOTALL)).split())


def test_the_page_names_model_suites_length_bias_and_every_path() -> None:
    text = _text(certificate_html(reward_model_certificate()))
    for wanted in (
        "train_reward_model 3f3f3f3f3f3f",
        "sha256:abababababab",
        "91.3 %",
        "89.4 to 93.2 %",
        "labelled-facts",
        "nothing was left",
        "+0.0840",
        "Effect of rewriting",
        "Accuracy without its part",
        "4.7 %",
        "3 had no room",
        "Evaluator, batches of 1",
        "2.40e−7",
    ):
        assert wanted in text, wanted


def test_the_calibration_error_stands_with_its_interval_beside_what_a_perfect_model_shows() -> None:
    text = _text(certificate_html(reward_model_certificate()))
    assert "3.4 % 2.4 to 4.4 %" in text
    assert "4.1 % with what chance adds; a perfect model shows 2.9 %, up to 4.3 %" in text
    assert "bins of at least 20 prompts" in text


def test_parity_is_said_as_far_as_it_was_measured() -> None:
    found = reward_model_certificate()
    text = _text(certificate_html(found))
    assert "the same scores" not in text
    assert "code paths equal within less than 0.01 % of a typical margin, 0 of 32 orders changed" in text
    assert "a margin by more than 0.243 (typical: 1.62), or if more than 1 of 32 orders change" in text
    path = found.parity.paths[0].model_copy(update={"max_margin_difference": 0.081, "num_orders_changed": 1})
    parity = found.parity.model_copy(update={"precision": "bfloat16", "bound": 0.2, "paths": (path,)})
    text = _text(certificate_html(found.model_copy(update={"parity": parity})))
    assert "equal within 5.0 % of a typical margin, 1 of 32 orders changed" in text
    assert "equal within the bounds" in text


def test_parity_of_an_older_certificate_claims_nothing_about_margins() -> None:
    found = reward_model_certificate()
    old = {"num_conversations": 64, "reference": "logged by training", "bound": 1e-4, "paths": []}
    parity = ScoreParity.model_validate({**old, "paths": [{"name": "a", "max_difference": 2e-7}]})
    text = _text(certificate_html(found.model_copy(update={"parity": parity})))
    assert "scores up to 2.00e−7 apart" in text
    assert "orders changed" not in text.replace("Orders changed", "")


def test_every_reliability_plot_has_the_same_axes_whatever_was_observed() -> None:
    """A point at 93 % and one at 20 % must not look alike because each plot chose its own scale."""
    for observed, low, high in ((0.93, 0.85, 0.97), (0.2, 0.1, 0.35)):
        item = CalibrationBin(mean_predicted=0.9, observed=observed, low=low, high=high, count=40, num_prompts=40)
        plot = calibration_plot("calibration", [item], salt="x")
        assert plot is not None
        ticks = re.findall(r"\d+ %", plot.svg)
        assert ticks == [f"{share} %" for share in (50, 60, 70, 80, 90, 100, 0, 20, 40, 60, 80, 100)]
        assert "with intervals over prompts" in plot.note


def test_without_a_run_no_gate_is_claimed_to_have_judged() -> None:
    html = certificate_html(reward_model_certificate())
    assert "Measured; no gate has judged it on this page." in html
    assert 'href="#rules"' not in html


def test_a_suite_below_its_own_minimum_is_the_headline() -> None:
    found = reward_model_certificate()
    first = found.suites[0].model_copy(update={"minimum_accuracy": 0.95})
    html = certificate_html(found.model_copy(update={"suites": (first, *found.suites[1:])}))
    assert f"Below its minimum on {TEST_SUITE}." in html


def with_score(score: Metric | None, minimum: float) -> Certificate:
    found = reward_model_certificate()
    first = found.suites[0].model_copy(update={"score": score, "minimum_accuracy": minimum})
    return found.model_copy(
        update={"suites": (first, *(suite.model_copy(update={"minimum_accuracy": None}) for suite in found.suites[1:]))}
    )


@pytest.mark.parametrize(
    "score",
    [
        Metric(name="score", value=0.75, unit="fraction", count=99, ci_low=0.65, ci_high=0.83),
        Metric(name="score", value=0.75, unit="fraction", count=99),
        None,
    ],
    ids=["interval", "no interval", "no score"],
)
@pytest.mark.parametrize("minimum", [0.6, 0.65, 0.7, 0.75, 0.8])
def test_a_minimum_is_held_as_the_gate_of_a_run_holds_it(score: Metric | None, minimum: float) -> None:
    found = with_score(score, minimum)
    rule = accuracy_rule(found.suites[0], minimum, RewardModelGate().held_by)
    assert rule is not None
    html = certificate_html(found)
    assert ("Below its minimum on" in html) is not rule.passed
    assert "A minimum is kept if the lower end of the interval reaches it" in html


def test_what_holds_a_minimum_is_said_by_the_verdict_where_there_is_one_and_not_at_all_without_a_minimum() -> None:
    found = with_score(None, 0.7)
    assert "A minimum is kept" not in certificate_html(found, gate("reward_model"))
    none = found.suites[0].model_copy(update={"minimum_accuracy": None})
    assert "A minimum is kept" not in certificate_html(found.model_copy(update={"suites": (none, *found.suites[1:])}))


def test_the_verdict_of_a_run_stands_on_top_and_a_waiver_says_who_and_why() -> None:
    assert "The gate: passed." in certificate_html(reward_model_certificate(), gate("reward_model"))
    waived = certificate_html(
        reward_model_certificate(), gate("reward_model", passed=False, waiver=("Ada", "labels are random"))
    )
    assert "The gate: not passed, waived." in waived
    assert "Waived by Ada because: Labels are random." in waived


def test_the_page_asks_nothing_of_the_network_and_runs_no_script() -> None:
    html = certificate_html(reward_model_certificate())
    assert "default-src 'none'" in html
    assert not re.findall(r'(?:src|href)="(?!#)', html)
    assert "<script" not in html


def test_foreign_text_is_escaped() -> None:
    found = reward_model_certificate()
    first = found.suites[0].model_copy(
        update={
            "origin": ATTACK,
            "title": ATTACK,
            "missing": (ATTACK,),
            "left_out_examples": (ATTACK,),
            "left_out_because": ((ATTACK, 3),),
        }
    )
    model = found.model.model_copy(update={"origin": ATTACK})
    sample = found.samples[0].model_copy(update={"chosen": ATTACK, "domain": ATTACK})
    html = certificate_html(
        found.model_copy(update={"suites": (first,), "model": model, "samples": (sample,)}), gate("reward_model")
    )
    assert ATTACK not in html
    assert "&lt;script&gt;" in html
