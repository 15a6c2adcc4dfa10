"""What a plan refuses or warns of before anything is spent: schedules, batches and floors that cannot work."""

from pathlib import Path

import pytest

from containers.contracts.names import StageName
from tasks.config.errors import InvalidConfigError
from tasks.config.loading import LoadedConfig, load_run_config
from tasks.plan.run_plan import plan_run
from tasks.plan.text import render_plan
from tests.unit.factories.plan_runs import small_run, stage_of

PRODUCTION = "configs/runs/helpsteer3-qwen3-8b.yaml"


@pytest.fixture
def production(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    return project / PRODUCTION


def test_a_schedule_that_never_evaluates_or_saves_is_refused_with_the_numbers(production: Path) -> None:
    loaded = load_run_config(
        production,
        overrides=["train_reward_model.schedule.eval_steps=200", "train_reward_model.schedule.save_steps=400"],
    )
    with pytest.raises(InvalidConfigError) as caught:
        plan_run(loaded)
    said = str(caught.value)
    assert said.startswith(f"{production} has 1 mistake:\n  train_reward_model.schedule: ")
    assert "eval_steps 200 would never evaluate and save_steps 400 would never save: the run has 180 steps" in said


def test_every_impossible_schedule_is_reported_at_once(tmp_path: Path) -> None:
    loaded = small_run(
        tmp_path,
        train_reward_model={"schedule": {"eval_steps": 500}, "lora": {"r": 8}},
        train_sft={"schedule": {"save_steps": 600}},
    )
    with pytest.raises(InvalidConfigError) as caught:
        plan_run(loaded)
    assert [mistake.key for mistake in caught.value.mistakes] == ["train_sft.schedule", "train_reward_model.schedule"]
    assert "Examples were counted before any filter: there are at most so many." in str(caught.value)


NO_FLOORS = {"minimum_train_pairs": 1, "minimum_validation_pairs": 1, "minimum_policy_prompts": 0}


def refusals(loaded: LoadedConfig) -> list[str]:
    with pytest.raises(InvalidConfigError) as caught:
        plan_run(loaded)
    return [str(mistake) for mistake in caught.value.mistakes]


@pytest.mark.parametrize("schedule", [{}, {"max_steps": 100}], ids=["one epoch", "100 steps"])
def test_a_batch_that_the_data_can_never_fill_is_refused(tmp_path: Path, schedule: dict[str, int]) -> None:
    reward_model = {"schedule": schedule, "lora": {"r": 8}}
    (said,) = refusals(small_run(tmp_path, num_train=5, filter_dataset=NO_FLOORS, train_reward_model=reward_model))
    assert said == (
        "train_reward_model.global_batch_size: 8 (the default of gpu_profile `small`) is more than the 5 pairs that "
        "the data can give before any filter: no batch would ever be full. Lower it, or bring more data."
    )


def test_a_batch_of_completions_needs_prompts_enough(tmp_path: Path) -> None:
    policy = {"global_batch_size": 512, "num_generations": 4, "lora": {"r": 8}}
    (said,) = refusals(small_run(tmp_path, num_train=125, train_policy=policy))
    assert said.startswith(
        "train_policy.global_batch_size: 512 is more than the 500 completions that the data can give"
    )


def test_a_batch_that_is_probably_never_full_is_a_warning(tmp_path: Path) -> None:
    filters = {**NO_FLOORS, "policy_prompt_fraction": 0.5}
    reward_model = {"schedule": {"max_steps": 5}, "lora": {"r": 8}}
    plan = plan_run(small_run(tmp_path, num_train=10, filter_dataset=filters, train_reward_model=reward_model))
    warning = plan.warnings[0]
    assert warning == (
        "train_reward_model.global_batch_size: 8 is more than the 5 pairs to be expected, so a batch may never be full."
    )
    assert f"WARNING: {warning}" in render_plan(plan)


@pytest.mark.parametrize(
    ("num_train", "sections", "expected"),
    [
        (103, {}, "gives at most 103 pairs, one for each line, and 104 are required: minimum_train_pairs (100), "),
        (200, {"filter_dataset": {"max_rows": 50}}, "gives at most 50 pairs"),
        (125, {"filter_dataset": {"minimum_validation_pairs": 21}}, "validation.jsonl gives at most 20 pairs"),
    ],
    ids=["training and policy", "a sample", "validation"],
)
def test_floors_that_no_filter_and_no_split_can_reach_are_refused(
    tmp_path: Path, num_train: int, sections: dict[str, object], expected: str
) -> None:
    (said,) = refusals(small_run(tmp_path, num_train=num_train, **sections))
    assert said.startswith("filter_dataset: ")
    assert expected in said


def test_a_minimum_that_so_few_test_pairs_cannot_show_is_a_warning(tmp_path: Path) -> None:
    gates = {"reward_model": {"minimum_accuracy": 0.95}}
    said = plan_run(small_run(tmp_path, num_train=125, gates=gates)).warnings
    wanted = (
        "gates.reward_model.minimum_accuracy: 0.95 cannot be shown: with 20 test pairs the interval of a model without "
        "an error begins at 8"
    )
    assert any(text.startswith(wanted) for text in said), said
    for change in ({"held_by": "figure"}, {"waive": {"by": "ada", "reason": "a trial"}}):
        changed = {"reward_model": {**gates["reward_model"], **change}}
        warnings = plan_run(small_run(tmp_path, num_train=125, gates=changed)).warnings
        assert not any("cannot be shown" in text for text in warnings)


def test_as_many_rows_as_the_floors_ask_for_are_enough(tmp_path: Path) -> None:
    assert plan_run(small_run(tmp_path, num_train=104)).mistakes == ()


def test_a_part_of_an_epoch_that_is_no_whole_step_is_refused(tmp_path: Path) -> None:
    (said,) = refusals(small_run(tmp_path, train_reward_model={"schedule": {"num_epochs": 0.05}, "lora": {"r": 8}}))
    assert said == (
        "train_reward_model.schedule.num_epochs: 0.05 of an epoch of 13 steps is 0.65 steps: not one whole "
        "batch. Raise it, or set max_steps."
    )


def test_intervals_that_take_minutes_are_a_warning_and_stand_in_the_time(tmp_path: Path) -> None:
    loaded = small_run(tmp_path, evaluate_reward_model={"num_bootstrap": 1_000_000_000})
    plan = plan_run(loaded)
    (warning,) = plan.warnings
    assert warning.startswith("evaluate_reward_model.num_bootstrap: its intervals take about 10 minutes of one core")
    time = stage_of(plan, StageName.EVALUATE_REWARD_MODEL).time
    assert time is not None and time.value is not None and time.value > 600
    assert plan_run(small_run(tmp_path, evaluate_reward_model={"num_bootstrap": 100_000})).warnings == ()


def test_a_stage_that_would_be_stopped_before_it_ends_is_a_warning(tmp_path: Path) -> None:
    tight = plan_run(small_run(tmp_path, runtime={"timeout_s": {"train_policy": 16, "default": 3600}}))
    (warning,) = tight.warnings
    assert warning.startswith("runtime.timeout_s: train_policy is estimated to take ")
    assert warning.endswith(
        " on profile `small`, and is stopped after 16 s. Take faster hardware or a smaller model, or raise the limit."
    )
    assert plan_run(small_run(tmp_path)).warnings == ()
