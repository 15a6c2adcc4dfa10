"""A table in Prefect is read by people in a hurry: its figures must be right, and foreign text must not break it."""

import subprocess
import sys

import pytest

from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import CheckFinding, StageRecord
from containers.formatting import markdown_table
from tasks.pages.funnel import funnel_markdown
from tasks.pages.markdown import (
    gate_markdown,
    policy_markdown,
    reward_model_markdown,
    stage_markdown,
    system_check_markdown,
    training_markdown,
)
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
    text = system_check_markdown(
        (
            CheckFinding(name="RAM", found="24 GiB", wanted="8 GiB", verdict="ok"),
            CheckFinding(name="memlock", found="64 MiB", wanted="unlimited", verdict="warning", advice="ulimit -l"),
            CheckFinding(name="Docker", found="no answer", wanted="answers", verdict="failure", advice="start dockerd"),
        )
    )
    assert "1 failure, 1 warning in 3 checks." in text
    assert [row.split(" | ")[0] for row in rows(text)[2:]] == ["| Docker", "| memlock", "| RAM"]
    assert "| Docker | ✘ failure | no answer | answers | start dockerd |" in text


def test_the_funnel_shows_every_filter_with_thousands_separators() -> None:
    text = funnel_markdown(funnel())
    assert "4,120 rows read" in text
    assert "| Malformed | 4,120 | 58 | 4,062 |" in text
    assert "| Set aside for the policy | 506 | pairs |" in text


def test_training_shows_steps_parameters_and_the_metrics_with_unit_and_origin() -> None:
    metrics = (
        Metric(name="eval_accuracy", value=0.918, unit="fraction", ci_low=0.9, ci_high=0.935, count=812),
        Metric(name="memory", value=3 * 1024**3, unit="bytes", origin="estimated"),
    )
    text = training_markdown(training_info(StageName.TRAIN_REWARD_MODEL, steps=260), metrics)
    assert "| Steps | 260 of 260 |" in text
    assert "| Trained parameters | 91,000 (20.0 % of 455,000) |" in text
    assert "| Best | eval_accuracy 0.918 at step 234 |" in text
    assert "| Eval accuracy | 91.8 % | 90.0 to 93.5 % | 812 | measured |" in text
    assert "| Memory | 3.00 GiB | — | — | estimated |" in text


def test_a_resumed_training_says_from_where() -> None:
    info = training_info(StageName.TRAIN_POLICY, steps=50).model_copy(update={"resumed_from_step": 20})
    assert "| Steps | 50 of 50, resumed from step 20 |" in training_markdown(info, ())


def test_the_reward_model_shows_verdict_score_by_suite_and_both_scores() -> None:
    text = reward_model_markdown(reward_model_certificate(), gate("reward_model"))
    assert "✔ The reward model passed its gate." in text
    assert "| validation | 91.3 % | 89.4 to 93.2 % | — | 812 | 91.3 % | 1 | 3 | 1.42 |" in text
    assert "| rewardbench-subset | nothing was left |" in text
    assert "- **chosen, 2.31:** " in text and "- **rejected, −1.12:** " in text
    assert "(✔ right)" in text and "(✘ wrong)" in text


def test_the_policy_table_says_that_the_judge_is_the_reward_model() -> None:
    text = policy_markdown(policy_evaluation(), gate("policy"))
    assert "| Reward difference | 1.62 | 1.33 to 1.91 | 48 | measured |" in text
    assert "| KL | 0.412 nats | 0.330 to 0.500 nats | 48 | estimated |" in text
    assert "| Identical completions | 6.2 % | — | 48 | measured |" in text
    assert "the reward model that the policy was trained against" in text


def test_a_waived_gate_names_who_and_why_and_does_not_read_as_passed() -> None:
    text = gate_markdown(gate("reward_model", passed=False, waiver=("Ada", "labels are random")))
    assert "did not pass its gate. Waived by Ada because: labels are random" in text
    assert "✔" not in text
    assert "✘ The policy did not pass its gate." in gate_markdown(gate("policy", passed=False))


def test_a_gate_shows_its_advice() -> None:
    advice = "Raise train_policy.optimizer.learning_rate."
    assert gate_markdown(gate("policy", passed=False, advice=advice)).rstrip().endswith(advice)


def test_a_stage_shows_only_what_is_known() -> None:
    skipped = stage_markdown(StageRecord(stage=StageName.TRAIN_POLICY, status="skipped", message="the gate closed"))
    assert "| Why | the gate closed |" in skipped
    assert "Duration" not in skipped and "MLflow" not in skipped
    ran = stage_markdown(StageRecord(stage=StageName.TRAIN_SFT, status="ran", duration_s=134, runtime="docker"))
    assert "| Duration | 2 min 14 s |" in ran


def test_foreign_text_breaks_no_table_and_makes_no_markup() -> None:
    evaluation = reward_model_certificate()
    sample = evaluation.samples[0].model_copy(update={"chosen": ATTACK, "rejected": ATTACK})
    text = reward_model_markdown(evaluation.model_copy(update={"samples": (sample,)}), gate("reward_model"))
    line = next(line for line in text.splitlines() if "alert" in line)
    assert line.startswith("- **chosen") and "| b" not in line.replace("\\|", "")
    assert "<script" not in text
    assert "\\!\\[" in line or "!\\[image\\]" in line
    assert "\\`code\\`" in line and "\\*\\*bold\\*\\*" in line


def test_a_row_of_the_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match="A row has 1 cells, the table 2 columns"):
        markdown_table(("a", "b"), [("only one",)])


def test_the_module_loads_neither_torch_nor_matplotlib() -> None:
    code = "import sys, tasks.pages.markdown; sys.exit(bool({'torch', 'matplotlib', 'prefect'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
