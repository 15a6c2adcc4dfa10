"""The first thing that a reader sees: what happened, the worst of it first, and the main figures."""

from pathlib import Path

import pytest

from containers.contracts.certificate import CheckpointChoice
from containers.contracts.names import CERTIFICATE_FILE, FUNNEL_FILE, POLICY_EVALUATION_FILE, StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import CheckFinding, GateRule, PolicyEvaluation
from containers.document.model import Banner, Card
from containers.report.inputs import load_report_inputs
from containers.report.run_page import run_page
from containers.report.verdict import headline_cards, run_verdict
from tests.unit.factories.report.certificate_records import reward_model_certificate
from tests.unit.factories.report.report_factory import MadeRun, make_run, that_ends_with, with_stages
from tests.unit.factories.report.report_records import gate, policy_evaluation

JUDGED = StageName.EVALUATE_REWARD_MODEL


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return make_run(tmp_path, curves=False)


def banner(made: MadeRun, *, until: StageName | None = None, **changes: object) -> Banner:
    pipeline = with_stages(made.pipeline, until=until).model_copy(update=changes)
    return run_verdict(load_report_inputs(made.context(pipeline=pipeline)))


def cards(made: MadeRun, *, until: StageName | None = None, **changes: object) -> dict[str, Card]:
    pipeline = with_stages(made.pipeline, until=until).model_copy(update=changes)
    return {card.label: card for card in headline_cards(load_report_inputs(made.context(pipeline=pipeline)))}


def told(found: Banner) -> str:
    return " ".join((found.headline, *found.details))


def test_both_gates_passed(made: MadeRun) -> None:
    found = banner(made)
    assert (found.tone, found.headline) == ("plain", "No independent judge has judged the policy.")
    assert [text[:40] for text in found.details] == [
        "Only what trained it, or learnt from the",
        "All gates passed.",
        "The policy passed its gate. Reward gain ",
        "The reward model passed its gate. Accura",
    ]


def test_one_gate_is_not_all_of_them(made: MadeRun) -> None:
    found = banner(made, until=JUDGED, gates=(gate("reward_model"),))
    assert (found.tone, found.headline) == ("plain", "The policy was not judged.")
    assert "All gates passed" not in told(found)
    assert "The reward model passed its gate." in told(found)


def test_a_gate_that_opened_by_a_waiver_was_not_passed(made: MadeRun) -> None:
    waived = gate("reward_model", passed=False, waiver=("Ada", "a trial"))
    found = banner(made, gates=(waived, gate("policy")))
    assert (found.tone, found.headline) == (
        "warn",
        "The reward model did not pass its gate, and the gate was waived.",
    )
    assert "All gates passed" not in told(found) and "was not judged" not in told(found)


def test_a_gate_of_many_rules_shows_the_missed_ones_first_and_counts_the_rest(made: MadeRun) -> None:
    met = [
        GateRule(name=f"accuracy on suite {n}", wanted="at least 60 %", found="71 % " * 12, passed=True)
        for n in range(9)
    ]
    missed = GateRule(name="flips by padding", wanted="at most 10 %", found="62.2 %", passed=False)
    verdict = gate("reward_model", passed=False).model_copy(update={"rules": (*met, missed)})
    text = told(banner(made, gates=(verdict,)))
    assert "Flips by padding: 62.2 %, wanted at most 10 %; accuracy on suite 0" in text
    shown = text.count("accuracy on suite")
    assert shown < len(met) and f"{len(met) - shown} more rules are in the gate's table." in text


def test_without_a_gate_the_page_says_that_none_was_reached(made: MadeRun) -> None:
    found = banner(made, until=StageName.FILTER_DATASET, gates=())
    assert (found.tone, found.headline) == ("plain", "No gate was reached.")
    assert "was not judged" not in told(found)


def test_a_failed_stage_comes_before_everything_that_went_well(made: MadeRun) -> None:
    stages = [
        record.model_copy(update={"status": "failed", "message": "the GPU's memory was full"})
        if record.stage is StageName.TRAIN_POLICY
        else record.model_copy(update={"status": "skipped"})
        if record.stage is StageName.EVALUATE_POLICY
        else record
        for record in made.pipeline.stages
    ]
    found = banner(made, stages=tuple(stages), gates=(gate("reward_model"),), stopped_because="train_policy failed")
    assert (found.tone, found.headline) == ("bad", "train_policy failed.")
    assert found.details[0] == "the GPU's memory was full"
    assert "The run stopped before its end" not in told(found), "said already"
    assert "evaluate_policy failed" not in told(found)


def test_a_failed_check_names_what_failed_and_not_what_warned(made: MadeRun) -> None:
    checks = tuple(
        CheckFinding.model_validate({"name": name, "found": "1", "wanted": "2", "verdict": verdict})
        for name, verdict in (("disk", "failure"), ("memory", "failure"), ("memlock", "warning"), ("Docker", "ok"))
    )
    found = banner(made, checks=checks, gates=(), stages=())
    assert (found.tone, found.headline) == ("bad", "The system check failed: nothing was started.")
    assert found.details[0] == "disk, memory."


@pytest.mark.parametrize("passed", [True, False])
def test_a_run_that_broke_says_so_unless_a_closed_gate_is_the_reason(made: MadeRun, passed: bool) -> None:
    found = banner(made, until=JUDGED, gates=(gate("reward_model", passed=passed),), stopped_because="no server")
    assert ("The run stopped before its end." in told(found)) is passed
    assert found.tone == "bad"


def test_a_run_that_was_to_end_early_is_no_failure_and_lacks_nothing(made: MadeRun) -> None:
    pipeline = that_ends_with(made.pipeline, JUDGED).model_copy(update={"gates": (gate("reward_model"),)})
    found = run_verdict(load_report_inputs(made.context(pipeline=pipeline)))
    assert (found.tone, found.headline) == ("plain", "The run went up to evaluate_reward_model, as requested.")
    assert "was not judged" not in told(found)


def test_the_main_figures_have_interval_size_and_origin(made: MadeRun) -> None:
    found = cards(made)
    assert list(found) == [
        "Reward gain over the reference",
        "Win rate by the rewards",
        "KL to the reference",
        "Reward model accuracy",
        "Preference pairs used",
        "Time spent in stages",
    ]
    assert found["Reward gain over the reference"].value.startswith("+1.62")
    assert not found["KL to the reference"].value.startswith("+")
    assert found["Reward model accuracy"].detail.startswith("n = ")
    assert "test pairs" in found["Reward model accuracy"].detail
    pairs = found["Preference pairs used"]
    assert (pairs.value, pairs.interval) == ("2,024 pairs", "1,912 to train, 112 held out")


@pytest.mark.parametrize(("gain", "sign"), [(0.5, "+"), (0.0, ""), (-0.5, "−")])
def test_a_gain_has_its_sign_and_nothing_has_none(made: MadeRun, gain: float, sign: str) -> None:
    def with_gain(evaluation: PolicyEvaluation) -> PolicyEvaluation:
        changed = evaluation.reward_difference.model_copy(update={"value": gain, "ci_low": None, "ci_high": None})
        return evaluation.model_copy(update={"reward_difference": changed})

    path = made.folder(StageName.EVALUATE_POLICY) / POLICY_EVALUATION_FILE
    path.write_text(with_gain(policy_evaluation()).model_dump_json(), encoding="utf-8")
    value = cards(made)["Reward gain over the reference"].value
    assert value.startswith(sign) and (sign or value[0] == "0")


def test_what_was_not_measured_says_why(made: MadeRun) -> None:
    (made.folder(StageName.FILTER_DATASET) / FUNNEL_FILE).unlink()
    found = cards(made, until=JUDGED)
    assert found["Preference pairs used"].detail == "filter_dataset left no readable figures"
    for name in ("Reward gain over the reference", "Win rate by the rewards", "KL to the reference"):
        assert (found[name].value, bool(found[name].detail)) == ("", True)


def test_the_headline_is_the_accuracy_on_the_test_pairs_whatever_suite_comes_first(made: MadeRun) -> None:
    evaluation = reward_model_certificate()
    path = made.folder(StageName.EVALUATE_REWARD_MODEL) / CERTIFICATE_FILE
    turned = evaluation.model_copy(update={"suites": evaluation.suites[::-1]})
    path.write_text(turned.model_dump_json(), encoding="utf-8")
    (card,) = (card for card in headline_cards(load_report_inputs(made.context())) if "accuracy" in card.label)
    assert card.value == "91.3 %"


def test_the_time_spent_is_that_of_stages_that_ran_and_each_is_counted_by_its_status(made: MadeRun) -> None:
    records = made.pipeline.stages
    assert [record.duration_s for record in records] == [74.2] * len(records)
    changed = [
        records[0].model_copy(update={"status": "reused", "duration_s": 0}),
        records[1].model_copy(update={"status": "failed", "duration_s": 12}),
        records[2].model_copy(update={"status": "skipped", "duration_s": 0}),
        *(record.model_copy(update={"status": "reused", "duration_s": 0}) for record in records[3:]),
    ]
    pipeline = made.pipeline.model_copy(update={"stages": tuple(changed)})
    *_, card = headline_cards(load_report_inputs(made.context(pipeline=pipeline)))
    assert (card.value, card.interval) == ("12 s", f"1 run, {len(records) - 2} reused")


def test_a_run_that_only_fine_tunes_shows_its_loss_and_misses_no_gate(made: MadeRun) -> None:
    parts = (StageName.BUILD_BASE_MODEL, StageName.TRAIN_SFT)
    loss = Metric(name="validation_loss", value=1.25, unit="nats", count=12)
    records = tuple(
        record.model_copy(update={"metrics": (loss,)}) for record in made.pipeline.stages if record.stage in parts
    )
    changes: dict[str, object] = {"stages": records, "gates": ()}
    found = banner(made, **changes)
    assert (found.tone, found.headline) == ("plain", "Every stage ran.")
    shown = cards(made, **changes)
    assert list(shown) == ["Held-out loss of a token", "Time spent in stages"]
    assert shown["Held-out loss of a token"].value == "1.25 nats"
    context = made.context(pipeline=made.pipeline.model_copy(update=changes))
    page = run_page(load_report_inputs(context), title="T", num_samples=1)
    titles = [section.title for section in page.sections]
    assert "Supervised fine-tuning" in titles
    assert not {"Gates", "Reward model", "Policy"} & set(titles)


def test_the_card_of_the_accuracy_says_that_its_pairs_chose_the_checkpoint(made: MadeRun) -> None:
    assert "checkpoint" not in cards(made)["Reward model accuracy"].detail
    choice = CheckpointChoice(num_pairs=150, num_checkpoints=10, optimism=0.032)
    certificate = reward_model_certificate().model_copy(update={"choice": choice})
    (made.folder(JUDGED) / CERTIFICATE_FILE).write_text(certificate.model_dump_json(), encoding="utf-8")
    detail = cards(made)["Reward model accuracy"].detail
    assert detail.startswith("n = ")
    assert detail.endswith("They also chose the checkpoint: it may be about 3.2 points too high (2.3 to 5.5).")
