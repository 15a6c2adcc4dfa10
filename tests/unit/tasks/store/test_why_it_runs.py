"""The reason that a person reads when a stage runs again."""

import re

from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.training import OptimizerSettings
from containers.contracts.hardware import GpuProfile
from containers.contracts.identity import identity_key, stage_identity
from containers.contracts.names import StageName
from containers.contracts.schedule import plan_batch
from containers.contracts.spec import StageInput
from tasks.store.history import StageMemory, stage_memory, why_it_runs

STAGE = StageName.TRAIN_REWARD_MODEL
PROFILE = GpuProfile(name="cpu", num_gpus=0, precision="float32")


def memory(
    *, learning_rate: float = 1e-3, seed: int = 0, pairs: str = "sha256:aa", code: str = "sha256:1", batch: int = 8
) -> StageMemory:
    config = TrainRewardModelConfig(optimizer=OptimizerSettings(learning_rate=learning_rate))
    inputs = (StageInput(name="pairs", path="/x", digest=pairs, origin="filter_dataset 0123456789ab"),)
    identity = stage_identity(
        config, seed=seed, inputs=inputs, code_digest=code, profile=PROFILE, batch=plan_batch(batch, PROFILE)
    )
    return stage_memory(identity, key=identity_key(identity), inputs=inputs)


def test_a_changed_setting_is_named_with_both_values() -> None:
    reason = why_it_runs(STAGE, memory(), memory(learning_rate=2e-3))
    assert reason == "train_reward_model.optimizer.learning_rate changed from 0.001 to 0.002"


def test_a_changed_input_is_named_with_the_stage_that_made_it() -> None:
    reason = why_it_runs(STAGE, memory(), memory(pairs="sha256:bb"))
    assert reason == "its input pairs changed (filter_dataset 0123456789ab)"


def test_seed_and_programs_are_named() -> None:
    assert why_it_runs(STAGE, memory(), memory(seed=1)) == "run.seed changed from 0 to 1"
    assert "its program changed" in why_it_runs(STAGE, memory(), memory(code="sha256:2"))


def test_many_changes_are_counted_after_the_first_two() -> None:
    now = memory(learning_rate=2e-3, seed=1, pairs="sha256:bb", code="sha256:2", batch=16)
    reason = why_it_runs(STAGE, memory(), now)
    assert reason.startswith("its program changed")
    assert re.search(r"; and \d more$", reason)


def test_without_a_past_and_with_the_same_key_the_reason_is_no_setting() -> None:
    assert why_it_runs(STAGE, None, memory()) == "this run has no result of it yet"
    assert why_it_runs(STAGE, memory(), memory()) == "its artifact is gone"
