"""A key that is too narrow reuses wrong work; one that is too wide repeats hours."""

import pytest

from containers.contracts.hardware import BatchPlan, GpuProfile
from containers.contracts.spec import StageInput
from containers.contracts.stage_configs import (
    EvaluateRewardModelConfig,
    OptimizerSettings,
    PairFile,
    TrainPolicyConfig,
    TrainSftConfig,
)
from tasks.stage_key import process_code_digest, stage_key

PROFILE = GpuProfile(name="cpu", num_gpus=0, precision="float32")
BATCH = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=1, gradient_accumulation_steps=2)
INPUTS = (StageInput(name="pairs", path="/a", digest="sha256:1"), StageInput(name="start_model", path="/b", digest="x"))


def _key(**changes: object) -> str:
    arguments = {"seed": 1, "inputs": INPUTS, "code_digest": "sha256:c", "profile": PROFILE, "batch": BATCH}
    config = changes.pop("config", TrainSftConfig())
    return stage_key(config, **{**arguments, **changes})  # type: ignore[arg-type]


def test_the_same_work_has_the_same_key_wherever_its_inputs_lie_and_in_whatever_order_they_come() -> None:
    moved = tuple(item.model_copy(update={"path": "/elsewhere", "origin": "other"}) for item in reversed(INPUTS))
    assert _key(inputs=moved) == _key()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"code_digest": "sha256:d"},
        {"inputs": (INPUTS[0].model_copy(update={"digest": "sha256:2"}), INPUTS[1])},
        {"config": TrainSftConfig(optimizer=OptimizerSettings(learning_rate=2e-5))},
        {"config": EvaluateRewardModelConfig()},
        {"batch": BATCH.model_copy(update={"per_device_batch_size": 2, "gradient_accumulation_steps": 4})},
        {"profile": PROFILE.model_copy(update={"num_threads": 2})},
    ],
)
def test_whatever_can_change_a_number_changes_the_key(change: dict[str, object]) -> None:
    assert _key(**change) != _key()


@pytest.mark.parametrize("change", [{"name": "other"}, {"shm_size_gib": 9}, {"host_memory_gib": 3}])
def test_limits_that_change_no_number_leave_the_key_alone(change: dict[str, object]) -> None:
    assert _key(profile=PROFILE.model_copy(update=change)) == _key()


def test_a_pair_file_counts_by_content_and_not_by_path() -> None:
    here, there = (EvaluateRewardModelConfig(pair_files=(PairFile(name="a", path=path),)) for path in ("x", "y"))
    assert _key(config=here) == _key(config=there)


def test_how_long_prompts_are_judged_later_does_not_train_the_policy_again() -> None:
    assert _key(config=TrainPolicyConfig(evaluation_prompt_length=64)) == _key(config=TrainPolicyConfig())


def test_changed_stage_sources_change_the_identity_of_the_process_runtime() -> None:
    assert process_code_digest("sha256:1") != process_code_digest("sha256:2")
