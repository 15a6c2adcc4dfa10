"""The global batch and the number of steps are the run's, not the hardware's: else two machines train two models."""

from pathlib import Path

import pytest
import yaml

from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.configs.write_report import WriteReportConfig
from containers.contracts.hardware import GpuProfile
from containers.contracts.identity import SINGLE_BATCH, stage_batch
from containers.contracts.schedule import ScheduleError, plan_batch, resolve_schedule

FILES = sorted((Path(__file__).resolve().parents[4] / "configs" / "gpu_profiles").glob("*.yaml"))
TREES = [yaml.safe_load(path.read_text()) for path in FILES]
PROFILES = [GpuProfile.model_validate(tree) for tree in TREES if "ladder" not in tree]
NUM_PAIRS = 20_142
# 336 divides by 7, 4, 8 and 1 rank; the others do not divide by all of them.
SIZES = (16, 96, 112, 128, 336)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
@pytest.mark.parametrize("size", SIZES)
def test_a_global_batch_is_kept_to_the_pair_or_refused_with_the_nearest_that_can_be(
    profile: GpuProfile, size: int
) -> None:
    ranks = profile.num_processes
    if size % ranks:
        below, above = size // ranks * ranks, (size // ranks + 1) * ranks
        with pytest.raises(ScheduleError, match=f"Nearest: {below} or {above}"):
            plan_batch(size, profile)
        return
    plan = plan_batch(size, profile)
    assert plan.per_device_batch_size * plan.num_processes * plan.gradient_accumulation_steps == size
    assert plan.num_processes == ranks
    assert plan.per_device_batch_size <= profile.max_per_device_batch_size
    resolved = resolve_schedule(
        TrainingSchedule(num_epochs=1), num_examples=NUM_PAIRS, global_batch_size=plan.global_batch_size
    )
    assert resolved.num_steps == -(-NUM_PAIRS // size), "the steps follow from data and batch alone"


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_every_profile_can_cut_its_own_default(profile: GpuProfile) -> None:
    plan = plan_batch(None, profile)
    assert plan.global_batch_size == profile.default_global_batch_size
    assert plan.per_device_batch_size == profile.max_per_device_batch_size, "the default fills the GPUs that it is for"


def test_groups_of_completions_stay_whole_on_every_profile() -> None:
    for profile in PROFILES:
        plan = plan_batch(336, profile, multiple_of=4)
        assert plan.global_batch_size == 336
    seven = next(profile for profile in PROFILES if profile.name == "7x48gb")
    with pytest.raises(ScheduleError, match=r"must be a multiple of 28\. Nearest: 84 or 112"):
        plan_batch(98, seven, multiple_of=4)


def test_a_step_of_the_policy_has_whole_groups_of_completions_and_other_steps_need_none() -> None:
    cpu = next(profile for profile in PROFILES if profile.num_processes == 1)
    with pytest.raises(ScheduleError):
        stage_batch(TrainPolicyConfig(num_generations=4, global_batch_size=6), cpu)
    assert stage_batch(TrainPolicyConfig(num_generations=4, global_batch_size=8), cpu).global_batch_size == 8
    assert stage_batch(TrainSftConfig(global_batch_size=6), cpu).global_batch_size == 6
    assert stage_batch(WriteReportConfig(), cpu) == SINGLE_BATCH


@pytest.mark.parametrize(
    ("max_steps", "said"),
    [(5, r"has 5 steps .* Use at most 5, .*: then at every step\."), (40, r"Use at most 40, .*: then every 4 steps\.")],
)
def test_a_schedule_that_would_never_evaluate_is_refused_with_what_the_run_would_do_by_itself(
    max_steps: int, said: str
) -> None:
    schedule = TrainingSchedule(max_steps=max_steps, eval_steps=200)
    with pytest.raises(ScheduleError, match=f"eval_steps 200 would never evaluate.*{said}"):
        resolve_schedule(schedule, num_examples=1000, global_batch_size=10, num_eval_examples=50)


def test_a_schedule_may_evaluate_and_save_at_the_last_step() -> None:
    schedule = TrainingSchedule(max_steps=5, eval_steps=5, save_steps=5)
    found = resolve_schedule(schedule, num_examples=1000, global_batch_size=10, num_eval_examples=50)
    assert (found.num_steps, found.eval_steps, found.save_steps) == (5, 5, 5)


def test_what_a_schedule_leaves_out_is_a_tenth_of_its_steps() -> None:
    found = resolve_schedule(TrainingSchedule(max_steps=40), num_examples=1000, global_batch_size=10)
    assert (found.eval_steps, found.save_steps, found.steps_per_epoch) == (4, 4, 100)


def test_an_evaluation_needs_an_example() -> None:
    with pytest.raises(ScheduleError, match="not one validation example"):
        resolve_schedule(TrainingSchedule(), num_examples=100, global_batch_size=10, num_eval_examples=0)


def test_a_batch_smaller_than_the_ranks_is_offered_the_next_larger_one_alone() -> None:
    seven = next(profile for profile in PROFILES if profile.name == "7x48gb")
    with pytest.raises(ScheduleError, match=r"over 7 ranks: it must be a multiple of 7\. Nearest: 7\.$"):
        plan_batch(3, seven)
    with pytest.raises(ScheduleError, match=r"over 7 ranks in groups of 2: .* multiple of 14\. Nearest: 14 or 28\.$"):
        plan_batch(21, seven, multiple_of=2)


def test_examples_for_less_than_one_step_are_refused_unless_the_steps_are_given() -> None:
    with pytest.raises(ScheduleError, match="9 examples are fewer than one global batch of 10"):
        resolve_schedule(TrainingSchedule(), num_examples=9, global_batch_size=10)
    assert resolve_schedule(TrainingSchedule(), num_examples=10, global_batch_size=10).num_steps == 1
    assert resolve_schedule(TrainingSchedule(max_steps=3), num_examples=9, global_batch_size=10).num_steps == 3


@pytest.mark.parametrize(("num_epochs", "num_steps"), [(0.01, 1), (0.5, 50), (1.005, 101), (2, 200)])
def test_epochs_are_steps_of_the_global_batch(num_epochs: float, num_steps: int) -> None:
    schedule = TrainingSchedule(num_epochs=num_epochs, logging_steps=150)
    found = resolve_schedule(schedule, num_examples=991, global_batch_size=10)
    assert (found.num_steps, found.steps_per_epoch, found.logging_steps) == (num_steps, 100, min(150, num_steps))


@pytest.mark.parametrize(("num_epochs", "said"), [(0.5, "0.5 epochs)"), (1, "1 epoch)"), (2, "2 epochs)")])
def test_a_refused_schedule_says_how_many_epochs_it_is(num_epochs: float, said: str) -> None:
    with pytest.raises(ScheduleError, match="save_steps 500 would never save") as refused:
        resolve_schedule(
            TrainingSchedule(num_epochs=num_epochs, save_steps=500), num_examples=100, global_batch_size=10
        )
    assert said in str(refused.value)
