"""Read by whoever is about to spend GPU days: everything on one page, nothing from outside, foreign text escaped."""

import re

from containers.contracts.certificate import TEST_SUITE, Certificate
from containers.contracts.records import GateVerdict
from containers.document.html import page_html
from containers.report.certificate_page import certificate_page
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


def test_without_a_run_no_gate_is_claimed_to_have_judged() -> None:
    html = certificate_html(reward_model_certificate())
    assert "Measured; no gate has judged it on this page." in html
    assert 'href="#rules"' not in html


def test_a_suite_below_its_own_minimum_is_the_headline() -> None:
    found = reward_model_certificate()
    first = found.suites[0].model_copy(update={"minimum_accuracy": 0.95})
    html = certificate_html(found.model_copy(update={"suites": (first, *found.suites[1:])}))
    assert f"Below its minimum on {TEST_SUITE}." in html


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
