"""A table in Prefect is read by people in a hurry: its figures must be right, and foreign text must not break it."""

import re
import subprocess
import sys

import pytest

from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import CheckFinding, StageRecord
from containers.document.markdown import markdown
from containers.document.model import Table, heads
from containers.report.certificate_page import certificate_sections
from containers.report.curves import Curves
from containers.report.data import data_section
from containers.report.gates import gate_section
from containers.report.machines import checks_section
from containers.report.policy.comparison import policy_section
from containers.report.stages import stage_section
from containers.report.training import training_section
from tests.unit.factories.report.certificate_records import reward_model_certificate
from tests.unit.factories.report.report_records import (
    funnel,
    gate,
    policy_evaluation,
    training_info,
)

ATTACK = "a | b\n<script>alert(1)</script> [link](http://x) ![image](http://x) `code` **bold**"


def rows(markdown: str) -> list[str]:
    """The lines of every table."""
    return [line for line in markdown.splitlines() if line.startswith("|")]


def test_the_system_check_shows_failures_first_and_what_to_do() -> None:
    checks = (
        CheckFinding(name="RAM", found="24 GiB", wanted="8 GiB", verdict="ok"),
        CheckFinding(name="memlock", found="64 MiB", wanted="unlimited", verdict="warning", advice="ulimit -l"),
        CheckFinding(name="Docker", found="no answer", wanted="answers", verdict="failure", advice="start dockerd"),
    )
    text = markdown(checks_section(checks))
    assert "1 failure, 1 warning in 3 checks." in text
    assert [row.split(" | ")[0] for row in rows(text)[2:]] == ["| Docker", "| memlock", "| RAM"]
    assert "| Docker | ✘ failure | no answer | answers | start dockerd |" in text


def test_the_funnel_shows_every_filter_with_thousands_separators() -> None:
    text = markdown(data_section(funnel()))
    assert "4,120 rows were read" in text
    assert "| Malformed | 4,120 | 58 | 1.4 % | 4,062 |" in text
    assert "| Set aside with the policy's prompts | 506 pairs |" in text
    assert "![Where every row went](data:image/svg+xml;base64," in text


def test_training_shows_steps_parameters_and_the_metrics_with_unit_and_origin() -> None:
    metrics = (
        Metric(name="eval_accuracy", value=0.918, unit="fraction", ci_low=0.9, ci_high=0.935, count=812),
        Metric(name="memory", value=3 * 1024**3, unit="bytes", origin="estimated"),
    )
    stage = StageName.TRAIN_REWARD_MODEL
    text = markdown(training_section(stage, training_info(stage, steps=260), Curves(), metrics))
    assert "| Optimizer steps | 260 |" in text
    assert "| Parameters trained | 91,000 of 455,000 (20.0 %) |" in text
    assert "| Best checkpoint | held-out accuracy 0.918 at step 234 |" in text
    assert "No curves were recorded." in text
    assert "| Eval accuracy | 91.8 % | 90.0 to 93.5 % | 812 | measured |" in text
    assert "| Memory | 3.00 GiB | — | — | ⚠ estimated |" in text


def test_the_accuracy_of_a_training_says_that_its_pairs_chose_the_checkpoint() -> None:
    metric = Metric(name="validation_accuracy", value=0.9, unit="fraction", count=100, num_prompts=50)
    stage = StageName.TRAIN_REWARD_MODEL
    text = markdown(training_section(stage, training_info(stage, steps=260), Curves(), (metric,)))
    assert "tune pairs, on which the checkpoint was chosen" in text


def test_a_resumed_training_says_from_where() -> None:
    info = training_info(StageName.TRAIN_POLICY, steps=50).model_copy(update={"resumed_from_step": 20})
    text = markdown(training_section(StageName.TRAIN_POLICY, info, Curves(), ()))
    assert "| Optimizer steps | 50, resumed from step 20 |" in text


def test_the_reward_model_shows_verdict_score_by_suite_and_both_scores() -> None:
    text = markdown(*certificate_sections(reward_model_certificate(), gate("reward_model"), num_plotted=1))
    assert "## Gate of the reward model: ✔ passed" in text
    assert "| 91.3 % | 89.4 to 93.2 % | — | 812 | 812 | 91.3 % | 1 | 3 | 1.42 |" in text
    assert re.search(r"\| rewardbench-subset [^|]*\| nothing was left \|", text)
    assert "![Test: scores](data:image/svg" in text
    assert "- **chosen, 2.31:** " in text and "- **rejected, −1.12:** " in text
    assert "(✔ right order)" in text and "(✘ wrong order)" in text


def test_the_policy_table_says_that_the_judge_is_the_reward_model() -> None:
    text = markdown(policy_section(policy_evaluation(), by_pairs=False))
    assert "| Reward gain | 1.62 | 1.33 to 1.91 | 48 | measured |" in text
    assert "| KL | 0.412 nats | 0.330 to 0.500 nats | 48 | ⚠ estimated |" in text
    assert "| Identical completions | 6.2 % | — | 48 | measured |" in text
    assert "the same reward model that the policy was trained to please" in text


def test_a_waived_gate_names_who_and_why_and_does_not_read_as_passed() -> None:
    text = markdown(gate_section(gate("reward_model", passed=False, waiver=("Ada", "labels are random"))))
    assert text.startswith("## Gate of the reward model: ⚠ not passed, waived")
    assert "Waived by Ada because: Labels are random." in text
    assert "✔" not in text
    assert markdown(gate_section(gate("policy", passed=False))).startswith("## Gate of the policy: ✘ not passed")


def test_a_gate_shows_its_advice() -> None:
    advice = "Raise train_policy.optimizer.learning_rate."
    assert markdown(gate_section(gate("policy", passed=False, advice=advice))).rstrip().endswith(advice)


def markdown_of(record: StageRecord) -> str:
    return markdown(stage_section(record))


def test_a_stage_shows_only_what_is_known() -> None:
    skipped = markdown_of(StageRecord(stage=StageName.TRAIN_POLICY, status="skipped", message="the gate closed"))
    assert "| Why | the gate closed |" in skipped
    assert "Duration" not in skipped and "MLflow" not in skipped
    ran = markdown_of(StageRecord(stage=StageName.TRAIN_SFT, status="ran", duration_s=134, runtime="docker"))
    assert "| Duration | 2 min 14 s |" in ran


def test_foreign_text_breaks_no_table_and_makes_no_markup() -> None:
    evaluation = reward_model_certificate()
    sample = evaluation.samples[0].model_copy(update={"chosen": ATTACK, "rejected": ATTACK})
    text = markdown(*certificate_sections(evaluation.model_copy(update={"samples": (sample,)}), num_plotted=0))
    line = next(line for line in text.splitlines() if "alert" in line)
    assert line.startswith("- **chosen") and "| b" not in line.replace("\\|", "")
    assert "<script" not in text
    assert "\\!\\[" in line or "!\\[image\\]" in line
    assert "\\`code\\`" in line and "\\*\\*bold\\*\\*" in line


def test_a_row_of_the_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match="A row has 1 cells, the table 2 columns"):
        Table(heads("a", "b"), (("only one",),))


@pytest.mark.waits
def test_what_the_orchestrator_shows_loads_neither_torch_nor_matplotlib_nor_prefect() -> None:
    rooms = "certificate_page, data, gates, machines, policy, stages, training"
    heavy = "{'torch', 'matplotlib', 'prefect'}"
    code = f"import sys; from containers.report import {rooms}; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
