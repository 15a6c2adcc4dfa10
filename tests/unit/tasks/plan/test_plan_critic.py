"""A plan that forgets the critic promises a run that does not fit, or one that ends hours earlier than it will."""

from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.parts.training import LoraSettings
from containers.contracts.names import StageName
from tasks.config.loading import LoadedConfig
from tasks.plan.inputs.model_shape import ModelShape, lora_parameters
from tasks.plan.run_plan import plan_run
from tests.unit.factories.plan_runs import SHAPE, pair, run_on, stage_of

POLICY = StageName.TRAIN_POLICY
SETTINGS = {"max_prompt_length": 200, "max_completion_length": 50, "num_generations": 4, "lora": {"r": 8}}
ADAM = 16  # bytes of a trained weight with its gradient and moments


def ppo_run(folder: Path, *, own: dict[str, Any] | None = None, **settings: Any) -> LoadedConfig:
    reward_model = {"train_reward_model": {"lora": {"r": 4, "alpha": 8}}, **(own or {})}
    train_policy = {**SETTINGS, "algorithm": "ppo", **settings}
    return run_on(folder, [pair(100, 20, 30)] * 150, train_policy=train_policy, **reward_model)


def memory(loaded: LoadedConfig) -> dict[str, float]:
    return {figure.name: figure.value or 0 for figure in stage_of(plan_run(loaded), POLICY).memory}


def operations(loaded: LoadedConfig) -> float:
    found = stage_of(plan_run(loaded), POLICY).work
    assert found is not None and found.value is not None
    return found.value


def adapters(r: int) -> int:
    return lora_parameters(ModelShape.model_validate(SHAPE), LoraSettings(r=r))


def test_the_runs_own_reward_model_shares_the_policys_weights_and_brings_its_adapters(tmp_path: Path) -> None:
    found = memory(ppo_run(tmp_path))
    assert found["critic"] == (adapters(4) + 64) * ADAM
    assert "critic's own weights" not in found
    assert "critic" not in memory(ppo_run(tmp_path, algorithm="rloo"))


@pytest.mark.parametrize(
    ("changes", "r", "has_own"),
    [
        ({"critic": {"model": "start_model", "lora": {"r": 2, "alpha": 4}}}, 2, False),
        ({"critic": {"model": "start_model", "lora": {"r": 2, "alpha": 4}}, "lora": None}, 2, True),
        ({"critic": {"model": "policy_features"}}, 0, False),
        ({"lora": None}, 4, True),
    ],
)
def test_a_critic_without_shared_weights_has_them_twice(
    tmp_path: Path, changes: dict[str, Any], r: int, has_own: bool
) -> None:
    found = memory(ppo_run(tmp_path, **changes))
    assert found["critic"] == ((adapters(r) if r else 0) + 64) * ADAM
    assert ("critic's own weights" in found) is has_own


def test_its_work_is_a_forward_and_backward_more_and_for_several_updates_another_forward(tmp_path: Path) -> None:
    without = operations(ppo_run(tmp_path, algorithm="reinforce++", beta=0.02))
    with_critic, features = (
        operations(ppo_run(tmp_path, critic={"model": model})) for model in ("reward_model", "policy_features")
    )
    assert without < features < with_critic
    again = operations(ppo_run(tmp_path, num_iterations=2))
    assert again < with_critic * 1.2, "what is written is used twice, so half as much is written"
