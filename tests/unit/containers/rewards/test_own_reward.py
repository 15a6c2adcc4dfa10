"""A reward of one's own is a class and a name: the training asks it, and nothing of the reward model is needed."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from containers.contracts.configs.parts.rewards import RewardModelTerm
from containers.contracts.configs.parts.training import LoraSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import StageName
from containers.contracts.registries import REWARDS
from containers.harness.context import StageContext
from containers.rewards.base import Answered, Reward, Value
from containers.rollouts.prompts import PolicyPrompts
from containers.stages import train_policy
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages


class Brevity(Reward):
    """A point for each character that an answer does without; twice as much on the way to the policy."""

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        return [-float(len(row.text)) for row in answered]

    def rewards(self, values: Sequence[float]) -> list[float]:
        return [2 * value for value in values]

    def scorable(self, context: StageContext, prompts: PolicyPrompts) -> PolicyPrompts:
        return prompts.without(["", "", "it", *[""] * (len(prompts.prompts) - 3)], num_rows=1, of="brevity")

    def record(self, context: StageContext) -> None:
        (context.output / "reward.txt").write_text("brevity")


def start(context: StageContext, config: TrainPolicyConfig, term: RewardModelTerm) -> Reward:
    return Brevity()


def test_the_policy_is_trained_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REWARDS._members, "reward_model", f"{__name__}:start")
    prompts = [f"Question {number}?" for number in range(12)]
    pairs = write_prompts(tmp_path / "pairs", train=prompts)
    inputs = {"prompts": pairs, "start_model": save_causal_model(tmp_path / "start")}
    config = TrainPolicyConfig(
        max_prompt_length=64,
        max_completion_length=6,
        lora=LoraSettings(r=4, alpha=8),
        gradient_checkpointing=False,
        schedule=TrainingSchedule(max_steps=2, save_steps=2),
    )
    context = make_context(tmp_path, StageName.TRAIN_POLICY, config, inputs)
    values = {metric.name: metric.value for metric in train_policy.run(context)}
    rows = parquet.read_table(context.output / "completions.parquet").to_pylist()
    assert rows and all(row["reward"] == 2 * row["value_reward_model"] == -2 * len(row["completion"]) for row in rows)
    assert values["reward_start"] < 0
    assert (context.output / "reward.txt").read_text() == "brevity"
    assert not (context.output / "reward_model_used.json").exists()
