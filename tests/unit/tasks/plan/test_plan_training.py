"""How long a training lasts and what it leaves on the disk is said before it starts, in figures that hold."""

from pathlib import Path
from typing import Any

import pytest

from containers.contracts.funnel import Funnel
from containers.contracts.names import FUNNEL_FILE, StageName
from tasks.plan.run_plan import RunPlan, plan_run
from tasks.plan.text import figure_text, render_plan
from tests.unit.factories.plan_runs import figure_of, pair, run_on, stage_of

POLICY, REWARD_MODEL = StageName.TRAIN_POLICY, StageName.TRAIN_REWARD_MODEL
CERTIFICATE = StageName.EVALUATE_REWARD_MODEL


def plan_of(folder: Path, **sections: Any) -> RunPlan:
    return plan_run(run_on(folder, [pair(10, 2, 3)] * 150, **sections))


def training(**schedule: int) -> dict[str, Any]:
    """A section with adapters and that schedule."""
    return {"lora": {"r": 8}, "schedule": schedule}


def test_steps_that_a_person_gave_are_said_in_epochs_and_many_are_a_warning(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, train_policy=training(max_steps=100))
    # 27 prompts at most, with 4 completions each: 7.4 epochs.
    assert figure_text(figure_of(plan, POLICY, "epochs")) == "at least 7.4 (100 steps of 8 completions)"
    assert plan.warnings == (
        "train_policy.schedule.max_steps: 100 steps of 8 completions are at least 7.4 epochs. After more than 5 a "
        "model may have memorized its examples. Lower it, or bring more data.",
    )
    assert plan_of(tmp_path, train_policy=training(max_steps=40)).warnings == ()
    debug = {"name": "small", "tags": ["debug"]}
    assert plan_of(tmp_path, train_policy=training(max_steps=100), run=debug).warnings == ()


def test_epochs_that_a_person_gave_are_not_said_again(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, train_reward_model=training(num_epochs=5), train_policy=training(max_steps=4))
    assert "epochs" not in [figure.name for figure in stage_of(plan, REWARD_MODEL).figures]
    assert figure_text(figure_of(plan, POLICY, "epochs")) == "at least 0.296 (4 steps of 8 completions)"
    assert plan.warnings == ()


def test_counted_prompts_give_an_exact_number_of_epochs(tmp_path: Path) -> None:
    funnel = Funnel(
        sources=("train.jsonl",),
        rows_read=150,
        steps=(),
        train_pairs=100,
        validation_pairs=20,
        policy_train_prompts=20,
        policy_eval_prompts=5,
    )
    (tmp_path / FUNNEL_FILE).write_text(funnel.model_dump_json())
    loaded = run_on(tmp_path, [pair(10, 2, 3)] * 150, train_policy=training(max_steps=100))
    plan = plan_run(loaded, artifacts={StageName.FILTER_DATASET: tmp_path})
    assert figure_text(figure_of(plan, POLICY, "epochs")) == "10 (exact; 100 steps of 8 completions)"


def test_what_is_done_at_every_step_is_said_so(tmp_path: Path) -> None:
    text = render_plan(plan_of(tmp_path, train_reward_model=training(eval_steps=1)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "evaluates at every step" in lines
    assert "saves at every step, and at each evaluation that is the best so far" in lines


def test_evaluations_on_some_pairs_are_said_and_are_less_work(tmp_path: Path) -> None:
    plans = {
        most: plan_of(tmp_path, train_reward_model={**training(max_steps=100, eval_steps=10), "max_eval_pairs": most})
        for most in (8, None)
    }
    text = figure_text(figure_of(plans[8], REWARD_MODEL, "pairs of an evaluation"))
    assert text == "at most 8 pairs (of 20; the last weights and the chosen ones are measured on all)"
    assert "pairs of an evaluation" not in [figure.name for figure in stage_of(plans[None], REWARD_MODEL).figures]
    work = {most: stage_of(plan, REWARD_MODEL).work for most, plan in plans.items()}
    assert work[8] is not None and work[None] is not None
    # Ten evaluations of 8 pairs and one of 20, in place of ten of 20, beside 100 steps of 8 pairs: a forward is a
    # quarter of an update that computes activations again.
    saved = (10 * 20 - (10 * 8 + 20)) / 4 / (100 * 8 + 10 * 20 / 4)
    assert (work[8].value or 0) / (work[None].value or 1) == pytest.approx(1 - saved, rel=0.02)


@pytest.mark.parametrize(
    ("stage", "num_checkpoints", "which"),
    [
        (REWARD_MODEL, 4, "save_total_limit, the best one, and one that is being written"),
        # A policy is not evaluated while it trains, so it has no best checkpoint.
        (POLICY, 3, "save_total_limit and one that is being written"),
    ],
)
def test_the_disk_holds_a_new_checkpoint_before_an_older_one_is_deleted(
    tmp_path: Path, stage: StageName, num_checkpoints: int, which: str
) -> None:
    two, three = (
        plan_of(tmp_path, **{stage.value: training(max_steps=20, save_total_limit=limit)}) for limit in (2, 3)
    )
    disk, larger = stage_of(two, stage).disk, stage_of(three, stage).disk
    assert disk is not None and larger is not None and disk.value is not None and larger.value is not None
    tokens, pairs_text = (0.0, "") if stage is POLICY else (_tokens_of_an_epoch(two, stage), ", kept tokens")
    assert disk.note == f"{num_checkpoints} checkpoints ({which}), whole model, adapter{pairs_text}"
    one = larger.value - disk.value
    parameters = sum(figure_of(two, stage, name).value or 0 for name in ("parameters", "trained parameters"))
    assert disk.value == pytest.approx(num_checkpoints * one + 4 * (parameters + tokens))


def _tokens_of_an_epoch(plan: RunPlan, stage: StageName) -> float:
    batch = stage_of(plan, stage).batch
    a_step, examples = (figure_of(plan, stage, name).value for name in ("tokens a step", "examples an epoch"))
    assert batch is not None and a_step and examples
    return a_step / batch.global_batch_size * examples


def test_judging_pairs_is_work_for_the_prompt_with_each_of_its_answers(tmp_path: Path) -> None:
    def work(prompt: int, chosen: int, rejected: int) -> float:
        planned = stage_of(plan_run(run_on(tmp_path, [pair(prompt, chosen, rejected)] * 150)), CERTIFICATE)
        assert planned.work is not None and planned.work.value is not None
        return planned.work.value

    base = work(40, 10, 10)
    for_an_answer = work(40, 20, 10) - base
    assert for_an_answer > 0
    assert work(40, 10, 20) - base == pytest.approx(for_an_answer)
    # The prompt is there twice, once for each answer.
    assert work(50, 10, 10) - base == pytest.approx(2 * for_an_answer)
