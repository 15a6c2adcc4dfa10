"""Who let a model through, when and why, must be readable years later; so must that nobody did."""

from pathlib import Path

import pytest

from containers.contracts.names import StageName
from containers.contracts.records import GateVerdict
from containers.document.markdown import page_markdown
from containers.report.inputs import load_report_inputs
from containers.report.run_page import short_page
from tests.unit.factories.report.report_factory import MadeRun, make_run, that_ends_with, with_stages
from tests.unit.factories.report.report_page_factory import Page, render
from tests.unit.factories.report.report_records import decided, gate

LAST = StageName.EVALUATE_REWARD_MODEL


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return make_run(tmp_path, curves=False)


def ended_at_the_gate(made: MadeRun, verdict: GateVerdict, **changes: object) -> Page:
    """The page of a run that came as far as the reward model's gate."""
    stopped = with_stages(made.pipeline, until=LAST, why=verdict.closed_because)
    return render(made, stopped.model_copy(update={"gates": (verdict,), **changes}))


def test_a_waiting_run_says_for_what_since_when_until_when_and_how_to_decide(made: MadeRun) -> None:
    page = ended_at_the_gate(made, gate("reward_model", decision=decided("waiting")), stopped_because="it waits")
    assert page.banner == "warn: The run waits for a person to decide about the reward model."
    assert "Without a decision by 28 November 2026, 11:40 UTC it counts as rejected." in page.text
    assert "rlhf approve --gate reward_model" in page.text
    assert "Asked on 21 November 2026, 11:40 UTC" in page.text
    assert "91.3 % on 812 pairs" in page.text
    assert "All gates passed" not in page.text
    assert "Nothing to show: the reward model waits at its gate for a decision." in page.text


def test_a_run_that_may_wait_for_ever_says_so(made: MadeRun) -> None:
    page = ended_at_the_gate(made, gate("reward_model", decision=decided("waiting", until="")))
    assert "It waits without limit." in page.text


def test_an_approval_names_who_when_and_why(made: MadeRun) -> None:
    approved = gate("reward_model", decision=decided("approved", by="Ada", reason="looked at forty samples"))
    page = render(made, made.pipeline.model_copy(update={"gates": (approved, gate("policy"))}))
    assert page.banner == "plain: No independent judge has judged the policy."
    assert "The reward model passed its gate and was approved by Ada." in page.text
    assert "Ada said on 23 November 2026, 09:15 UTC: Looked at forty samples." in page.text
    assert "Gate of the reward model: ✓ passed and approved" in page.text
    assert "Given by form in Prefect" in page.text


def test_a_rejection_is_the_headline_although_the_rules_passed(made: MadeRun) -> None:
    page = ended_at_the_gate(made, gate("reward_model", decision=decided("rejected", by="Bob", reason="biased")))
    assert page.banner == "bad: The reward model was rejected by Bob: policy training was not started."
    assert "Bob said on 23 November 2026, 09:15 UTC: Biased." in page.text
    assert "passed its gate" not in page.text


def test_silence_is_told_apart_from_a_rejection(made: MadeRun) -> None:
    page = ended_at_the_gate(made, gate("reward_model", decision=decided("timed_out")))
    assert page.banner == "bad: No decision about the reward model came in time: policy training was not started."
    assert "silence counts as a rejection" in page.text


def test_a_waiver_by_a_person_who_was_asked_reads_as_a_waiver_with_its_date(made: MadeRun) -> None:
    word = decided("waived", by="Ada", reason="a smoke test")
    waived = gate("reward_model", passed=False, waiver=("Ada", "a smoke test"), decision=word)
    page = render(made, made.pipeline.model_copy(update={"gates": (waived, gate("policy"))}))
    assert page.banner == "warn: The reward model did not pass its gate, and the gate was waived."
    assert "Waived by Ada on 23 November 2026, 09:15 UTC because: A smoke test." in page.text


def test_a_changed_mind_shows_both_words(made: MadeRun) -> None:
    before = decided("approved", by="Ada", reason="fine")
    word = decided("rejected", by="Bob", reason="biased", earlier=(before,))
    page = ended_at_the_gate(made, gate("reward_model", decision=word))
    assert "Before that approved by Ada, 23 November 2026, 09:15 UTC: fine" in page.text


def test_a_decision_against_the_figures_never_reads_as_a_pass(made: MadeRun) -> None:
    forged = gate("reward_model", passed=False, decision=decided("approved", by="Eve"))
    page = ended_at_the_gate(made, forged)
    assert page.banner.startswith("bad: The reward model was approved against its figures")


def test_a_run_that_broke_outside_a_stage_says_why_at_the_top(made: MadeRun) -> None:
    why = "base_model: the hub broke off the download of Qwen/Qwen3-8B after 3 of 16 GiB"
    stopped = with_stages(made.pipeline, until=StageName.FILTER_DATASET)
    page = render(made, stopped.model_copy(update={"gates": (), "stopped_because": why}))
    assert page.banner == "bad: The run stopped before its end."
    assert "the hub broke off the download" in page.text


def test_a_run_that_was_to_end_early_is_no_failure(made: MadeRun) -> None:
    part = that_ends_with(made.pipeline, LAST).model_copy(update={"gates": (gate("reward_model"),)})
    page = render(made, part)
    assert page.banner == "plain: The run went up to evaluate_reward_model, as requested."
    assert "The reward model passed its gate." in page.text
    assert "Nothing to show: not requested in this run." in page.text


def test_the_short_report_carries_who_decided_and_what_waits(made: MadeRun) -> None:
    approved = gate("reward_model", decision=decided("approved", by="Ada", reason="fine"))
    gates = (approved, gate("policy", decision=decided("waiting")))
    pipeline = made.pipeline.model_copy(update={"gates": gates})
    text = page_markdown(short_page(load_report_inputs(made.context(pipeline=pipeline)), title="RLHF run"))
    assert "## Gate of the reward model: ✔ passed and approved" in text
    assert "| Decided by | Ada |\n| Reason | fine |" in text
    assert "## Gate of the policy: ⚠ waits for a decision" in text
