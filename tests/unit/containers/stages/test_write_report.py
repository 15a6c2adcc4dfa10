"""The page must say what happened, also where little did."""

import re
from pathlib import Path

import pytest

from containers.contracts.names import (
    POLICY_EVALUATION_FILE,
    REPORT_HTML_FILE,
    REPORT_MARKDOWN_FILE,
    TRAINING_INFO_FILE,
    StageName,
)
from containers.contracts.records import CheckFinding, Histogram, StageRecord
from containers.harness.errors import BadDataError, MissingPrerequisiteError
from containers.stages import write_report
from tests.unit.factories.report.report_factory import MadeRun, make_run, stage_record, with_stages
from tests.unit.factories.report.report_page_factory import ATTACK, MAX_BYTES, Page, render
from tests.unit.factories.report.report_records import gate, metric, policy_evaluation, training_info


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    """A run in which everything went well; without curves, since a plot takes a tenth of a second."""
    return make_run(tmp_path, curves=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    """A run in which everything went well, with its curves."""
    return make_run(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def passed(whole: MadeRun) -> Page:
    """The page of a run in which everything went well."""
    return render(whole)


def test_a_run_that_passed_says_so_with_the_figures_that_matter(passed: Page) -> None:
    assert passed.banner == "plain: No independent judge has judged the policy."
    for figure in ("91.3 %", "89.4 to 93.2 %", "n = 812 test pairs", "+1.62", "1.33 to 1.91", "0.412 nats"):
        assert figure in passed.text
    assert "2,024 pairs" in passed.text
    assert "9 min 54 s" in passed.text  # eight stages of 74.2 s


def test_an_estimated_figure_is_marked_and_a_measured_one_is_not(passed: Page) -> None:
    assert passed.classes.count("card estimated") == 1
    assert passed.classes.count("card measured") == 5
    assert "KL to the reference estimated 0.412 nats" in re.sub(r"\s*(estimated)\s*", r" \1 ", passed.text)


def test_a_closed_gate_is_the_headline_and_leaves_the_policy_empty_with_the_reason(tmp_path: Path) -> None:
    made = make_run(tmp_path, accuracy=0.512, curves=False)
    verdict = gate("reward_model", passed=False)
    stopped = with_stages(made.pipeline, until=StageName.EVALUATE_REWARD_MODEL, why=verdict.closed_because)
    page = render(made, stopped.model_copy(update={"gates": (verdict,)}))
    assert page.banner == "bad: The reward model did not pass its gate: policy training was not started."
    assert "51.2 % on 812 pairs, wanted at least 60.0 %" in page.text
    assert "Nothing to show: the reward model did not pass its gate." in page.text
    assert "All gates passed" not in page.text


def test_a_waived_gate_never_reads_as_passed_and_names_who_and_why(made: MadeRun) -> None:
    waived = gate("reward_model", passed=False, waiver=("Ada", "the labels of this fixture are random"))
    page = render(made, made.pipeline.model_copy(update={"gates": (waived, gate("policy"))}))
    assert page.banner == "warn: The reward model did not pass its gate, and the gate was waived."
    assert "Waived by Ada because: The labels of this fixture are random." in page.text
    assert "All gates passed" not in page.text


def test_a_policy_gate_that_closed_warns_against_using_the_policy(made: MadeRun) -> None:
    gates = (gate("reward_model"), gate("policy", passed=False))
    page = render(made, made.pipeline.model_copy(update={"gates": gates}))
    assert page.banner == "bad: The policy did not pass its gate."
    assert "Do not use it in place of its reference." in page.text


def test_a_failed_stage_is_the_headline_with_its_message_and_later_stages_say_why_they_did_not_start(
    made: MadeRun,
) -> None:
    failed = stage_record(StageName.TRAIN_POLICY, made.root, status="failed", message="diverged: loss nan at step 12")
    pipeline = with_stages(made.pipeline, failed, until=StageName.TRAIN_POLICY)
    page = render(made, pipeline.model_copy(update={"gates": (gate("reward_model"),)}))
    assert page.banner == "bad: train_policy failed."
    assert page.text.count("diverged: loss nan at step 12") == 2  # banner and table
    assert "evaluate_policy not started · train_policy failed" in page.text


def test_a_reused_stage_is_shown_as_reused_and_costs_no_time(made: MadeRun) -> None:
    reused = stage_record(StageName.TRAIN_SFT, made.folder(StageName.TRAIN_SFT), status="reused")
    page = render(made, with_stages(made.pipeline, reused))
    assert "7 run, 1 reused" in page.text
    assert "8 min 39 s" in page.text  # six stages of 74.2 s


def test_a_reused_stage_says_when_it_was_made(made: MadeRun) -> None:
    folder = made.folder(StageName.TRAIN_SFT)
    reused = stage_record(StageName.TRAIN_SFT, folder, status="reused", message="made 2026-11-21T11:30:00+00:00")
    page = render(made, with_stages(made.pipeline, reused))
    assert "train_sft reused · made 21 November 2026 " in page.text
    assert "train_sft ✓ reused made 21 November 2026, 11:30 UTC — " in page.text
    assert "2026-11-21T11:30" not in page.text


def test_a_resumed_stage_says_from_where_and_that_its_duration_is_of_the_last_attempt(made: MadeRun) -> None:
    folder = made.folder(StageName.TRAIN_REWARD_MODEL)
    info = training_info(StageName.TRAIN_REWARD_MODEL, steps=260).model_copy(update={"resumed_from_step": 100})
    (folder / TRAINING_INFO_FILE).write_text(info.model_dump_json(), encoding="utf-8")
    third = stage_record(StageName.TRAIN_REWARD_MODEL, folder).model_copy(update={"attempts": 3})
    page = render(made, with_stages(made.pipeline, third))
    note = "train_reward_model ✓ ran resumed from step 100; the duration is that of the last attempt 1 min 14 s 3 "
    assert note in page.text
    assert page.text.count("the duration is that of the last attempt") == 1


def test_the_page_does_not_time_its_own_writing(made: MadeRun) -> None:
    own = StageRecord(stage=StageName.WRITE_REPORT, status="ran", runtime="process", message="wrote this page")
    page = render(made, made.pipeline.model_copy(update={"stages": (*made.pipeline.stages, own)}))
    assert "write_report this page" in page.text
    assert "write_report ✓ ran wrote this page — " in page.text
    assert "0.00 s" not in page.text
    assert "8 run, 0 reused" in page.text


def test_the_drawing_names_both_gates(passed: Page) -> None:
    assert "Reward model gate passed" in passed.text
    assert "Policy gate passed" in passed.text


def test_the_page_says_with_which_command_its_links_open(passed: Page, made: MadeRun) -> None:
    assert "open while rlhf ui -c configs/runs/demo.yaml --set run.seed=5 runs" in passed.text
    elsewhere = {"mlflow_url": "https://mlflow.example.org/#/experiments/1/runs/9a9a", "prefect_url": ""}
    assert "rlhf ui" not in render(made, made.pipeline.model_copy(update=elsewhere)).text


def test_both_losses_of_the_reward_model_say_what_they_are(passed: Page) -> None:
    assert "it includes the penalty on mean scores off zero (center_rewards_coefficient)" in passed.text
    assert "The log loss is that of the score difference alone." in passed.text


def test_a_policy_that_writes_what_its_reference_writes_is_called_so(made: MadeRun) -> None:
    evaluation, advice = policy_evaluation(), "The policy writes exactly what its reference writes."
    nothing = metric("m", -4.67e-5, "nats", None, 48)
    tie = {"policy": "Lima.", "reference": "Lima.", "reward_policy": 1.0, "reward_reference": 1.0, "winner": "tie"}
    same = {
        "kl": nothing,
        "reward_difference": nothing.model_copy(update={"unit": "score"}),
        "identical_completions": metric("identical_completions", 1.0, "fraction", None, 48),
        "reward_differences": Histogram(edges=(-0.5, 0.0, 0.5), counts=(0, 48)),
        "samples": (evaluation.samples[0].model_copy(update=tie),),
    }
    path = made.folder(StageName.EVALUATE_POLICY) / POLICY_EVALUATION_FILE
    path.write_text(evaluation.model_copy(update=same).model_dump_json(), encoding="utf-8")
    gates = (gate("reward_model"), gate("policy", passed=False, advice=advice))
    page = render(made, made.pipeline.model_copy(update={"gates": gates}))
    assert page.text.count(advice) == 2  # banner and gate
    assert "≈0 nats" in page.text and "e−5" not in page.text
    assert "Identical completions 100 %" in page.text
    assert "Not drawn: the reward difference is the same on every prompt." in page.text
    assert "tie: the same text" in page.text
    policy_section = page.source.split('<section id="policy">')[1].split("<section")[0]
    assert page.source.count("answer better") == 3 and "answer better" not in policy_section


def test_a_skipped_stage_shows_its_own_reason(made: MadeRun) -> None:
    reason = "no policy prompts were set aside"
    skipped = stage_record(StageName.EVALUATE_POLICY, made.root, status="skipped", message=reason)
    page = render(made, with_stages(made.pipeline, skipped).model_copy(update={"gates": (gate("reward_model"),)}))
    assert page.banner == "plain: The policy was not judged."
    assert f"Nothing to show: {reason}." in page.text


def test_optional_stages_that_are_no_part_of_the_run_are_left_out(tmp_path: Path) -> None:
    page = render(make_run(tmp_path, optional_stages=False, curves=False))
    assert "train_sft" not in page.text
    assert "build_base_model" not in page.text
    assert "Supervised fine-tuning" not in page.text


def test_a_run_that_never_started_is_reported_with_the_check_that_failed(made: MadeRun) -> None:
    check = CheckFinding(
        name="Docker daemon", found="no answer", wanted="answers", verdict="failure", advice="Start dockerd."
    )
    skipped = tuple(
        StageRecord(stage=record.stage, status="skipped", message="check_system failed")
        for record in made.pipeline.stages
    )
    nothing = made.pipeline.model_copy(update={"stages": skipped, "gates": (), "checks": (check,), "measured": ()})
    page = render(made, nothing)
    assert page.banner == "bad: The system check failed: nothing was started."
    assert "Start dockerd." in page.text
    assert "Nothing to show: check_system failed." in page.text


def test_the_markdown_carries_verdict_figures_and_stages_and_no_raw_markup(made: MadeRun) -> None:
    failed = stage_record(StageName.TRAIN_POLICY, made.root, status="failed", message=f"bad | {ATTACK}\nsecond line")
    context = made.context(pipeline=with_stages(made.pipeline, failed), title="RLHF run")
    write_report.run(context)
    text = (context.output / REPORT_MARKDOWN_FILE).read_text(encoding="utf-8")
    assert "❌ **train_policy failed.**" in text
    assert "| Reward model accuracy | 91.3 % | 89.4 to 93.2 % | n = 812 test pairs | measured |" in text
    assert "<script" not in text and "![" not in text
    assert "bad \\| &lt;/style&gt;" in text


def test_run_returns_the_size_of_the_page_and_the_number_of_its_figures(whole: MadeRun) -> None:
    context = whole.context()
    metrics = {metric.name: metric for metric in write_report.run(context)}
    source = (context.output / REPORT_HTML_FILE).read_bytes()
    assert metrics["report_size"].value == len(source) < MAX_BYTES
    assert metrics["num_figures"].value == source.count(b"<svg") == 19
    assert metrics["report_size"].unit == "bytes"


@pytest.mark.waits
@pytest.mark.usefixtures("drawn_anew")
def test_the_same_run_gives_the_same_page(whole: MadeRun, passed: Page) -> None:
    assert render(whole).source == passed.source


def test_without_a_pipeline_record_there_is_no_report(made: MadeRun) -> None:
    context = made.context()
    (made.root / "pipeline.json").write_text('{"run_id": 1}', encoding="utf-8")
    with pytest.raises(BadDataError, match=r"pipeline\.json cannot be read"):
        write_report.run(context)
    (made.root / "pipeline.json").unlink()
    with pytest.raises(MissingPrerequisiteError, match="pipeline"):
        write_report.run(context)
