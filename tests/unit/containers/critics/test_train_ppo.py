"""PPO from a killed or half-used rollout must be the same PPO, and its critic must not be trained on nothing."""

import json
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from safetensors.torch import load_file

from containers.algorithms.policy_state import POLICY_STATE_FILE
from containers.algorithms.policy_trainer import curve_metrics
from containers.contracts.configs.parts.critic import CriticSettings
from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_policy import AdaptiveKl, TrainPolicyConfig
from containers.contracts.names import StageName
from containers.contracts.records import TrainingInfo
from containers.critics.critic import CRITIC_FILE
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.report.curves import is_of_the_clock
from containers.rollouts.rollout import ROLLOUT_FILE
from containers.scoring.scorer import score_head_sha256
from containers.stages import train_policy
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

CONFIG = TrainPolicyConfig(
    algorithm="ppo",
    num_generations=2,
    max_prompt_length=64,
    max_completion_length=8,
    lora=LoraSettings(r=4, alpha=8),
    gradient_checkpointing=False,
    optimizer=OptimizerSettings(learning_rate=1e-3, scheduler="linear"),
    schedule=TrainingSchedule(max_steps=6, save_steps=1, save_total_limit=9),
    critic=CriticSettings(warmup_steps=2, minimum_explained_variance=1.0, learning_rate=1e-3),
    rollout_batch_size=16,
    num_iterations=2,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    merged = save_reward_model(folder / "reward_model" / "merged")
    prompts = ["Hi", "Which one?", "What is red?", "No", "Why?", "Yes", "Who?", "And?", "Is it?", "Go"]
    return {
        "certificate": write_certificate(folder / "certificate", score_head_sha256=score_head_sha256(merged)),
        "prompts": write_prompts(folder / "pairs", train=prompts),
        "start_model": save_causal_model(folder / "start", seed=3),
        "reward_model": folder / "reward_model",
    }


def context_of(tmp_path: Path, inputs: Mapping[str, Path], **changes: Any) -> StageContext:
    return make_context(tmp_path, StageName.TRAIN_POLICY, CONFIG.model_copy(update=changes), inputs)


def points_of(context: StageContext) -> list[tuple[int, dict[str, float]]]:
    lines = (json.loads(line) for line in (context.output / "curves.jsonl").read_text().splitlines())
    return [
        (
            line["step"],
            {name: value for name, value in line["values"].items() if not is_of_the_clock(name)},
        )
        for line in lines
    ]


def weights_of(context: StageContext) -> dict[str, torch.Tensor]:
    return dict(load_file(context.output / "model" / "model.safetensors"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Path]) -> StageContext:
    context = context_of(tmp_path_factory.mktemp("whole"), inputs)
    train_policy.run(context)
    return context


def test_the_critic_has_curves_and_the_policy_waits_for_it(whole: StageContext) -> None:
    points = dict(points_of(whole))
    steps = {step: values for step, values in points.items() if "critic_loss" in values}
    assert sorted(steps) == [1, 2, 3, 4, 5, 6]
    for values in steps.values():
        assert {"critic_value", "critic_return", "critic_clipped_fraction", "critic_grad_norm"} <= set(values)
        assert values["critic_grad_norm"] > 0
    # A rollout of 16 is used in two minibatches, twice; steps 1 and 5 begin one.
    assert [step for step in steps if "explained_variance" in steps[step]] == [1, 5]
    (last,) = (one for one in curve_metrics([steps[1], steps[5]], num_steps=6) if one.name == "explained_variance_end")
    assert (last.value, last.unit) == (steps[5]["explained_variance"], "fraction")
    assert [step for step in steps if "reward" in steps[step]] == [1, 5]
    # Two steps of warm-up are over when the second rollout is judged.
    assert [step for step in steps if "entropy" in steps[step]] == [5, 6]
    assert all(steps[step]["grad_norm"] == 0 for step in (1, 2, 3, 4))
    assert all(steps[step]["grad_norm"] > 0 for step in (5, 6))
    said = (whole.work / "events.jsonl").read_text()
    assert "The critic starts as the reward model test/reward_model" in said
    assert "Warning: the critic explains" in said and "after 4 steps" in said


def test_layers_that_keep_their_activations_change_neither_policy_nor_critic(
    tmp_path: Path, inputs: dict[str, Path], whole: StageContext
) -> None:
    context = context_of(tmp_path, inputs, gradient_checkpointing=2)
    train_policy.run(context)
    assert points_of(context) == points_of(whole)
    weights = weights_of(whole)
    assert all(torch.equal(weight, weights[name]) for name, weight in weights_of(context).items())
    assert "1 of 2 layers keep their activations" in (context.work / "events.jsonl").read_text()


def test_a_checkpoint_has_the_completions_that_are_still_to_be_used(whole: StageContext) -> None:
    for step in range(1, 7):
        folder = whole.checkpoints / f"checkpoint-{step}"
        told = json.loads((folder / POLICY_STATE_FILE).read_text())
        is_between = step % 4 != 0
        assert (folder / ROLLOUT_FILE).is_file() is is_between and (len(told["rows"]) == 16) is is_between
        assert (folder / CRITIC_FILE).is_file()


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_a_training_goes_on_exactly_from_every_step(
    tmp_path: Path, inputs: dict[str, Path], whole: StageContext, step: int
) -> None:
    broken = context_of(tmp_path, inputs)
    shutil.copytree(whole.checkpoints, broken.checkpoints, dirs_exist_ok=True)
    for later in range(step + 1, 7):
        shutil.rmtree(broken.checkpoints / f"checkpoint-{later}")
    train_policy.run(broken)
    info = TrainingInfo.model_validate_json((broken.output / "training_info.json").read_text())
    assert info.resumed_from_step == step
    for name, tensor in weights_of(whole).items():
        assert torch.equal(tensor, weights_of(broken)[name]), name
    later_points = [point for point in points_of(whole) if point[0] > step]
    assert [point for point in points_of(broken) if point[0] > step] == later_points
    critics = [
        torch.load(context.checkpoints / "checkpoint-6" / CRITIC_FILE, weights_only=True)["weights"]
        for context in (whole, broken)
    ]
    assert all(torch.equal(weight, critics[1][name]) for name, weight in critics[0].items())
    rows = [parquet.read_table(context.output / "completions.parquet").to_pylist() for context in (whole, broken)]
    assert [row for row in rows[0] if row["step"] > step] == [row for row in rows[1] if row["step"] > step]


def test_one_update_for_each_rollout_trains_both_and_needs_no_sibling(tmp_path: Path, inputs: dict[str, Path]) -> None:
    changes = {"num_generations": 1, "rollout_batch_size": None, "num_iterations": 1, "schedule": CONFIG.schedule}
    critic = CriticSettings(warmup_steps=0, cut_off="bootstrap", model="policy_features", learning_rate=1e-2)
    context = context_of(tmp_path, inputs, critic=critic, **changes)
    train_policy.run(context)
    points = [values for _, values in points_of(context) if "explained_variance" in values]
    assert len(points) == 6 and all(values["grad_norm"] > 0 for values in points)
    assert points[0]["ratio"] == pytest.approx(1, abs=1e-5) and points[0]["critic_value"] == 0
    assert points[-1]["critic_value"] != 0


def test_beta_follows_the_kl_and_a_resumed_training_goes_on_with_it(tmp_path: Path, inputs: dict[str, Path]) -> None:
    changes = {
        "algorithm": "grpo",
        "critic": CriticSettings(),
        "adaptive_kl": AdaptiveKl(target=1e-9, horizon=16),
        "num_iterations": 1,
        "rollout_batch_size": None,
    }
    one, other = (context_of(tmp_path / name, inputs, **changes) for name in ("one", "other"))
    train_policy.run(one)
    found = [(values["kl"], values["beta"]) for _, values in points_of(one) if "beta" in values]
    # Each step has 8 completions, half the horizon: by a tenth at most. At the start the KL is 0.
    assert found[0] == (pytest.approx(0, abs=1e-6), pytest.approx(0.04 * 0.9))
    for (_, before), (kl, beta) in pairwise(found):
        assert beta == pytest.approx(before * (1.1 if kl > 0 else 0.9))
    assert len({kl > 0 for kl, _ in found}) == 2
    shutil.copytree(one.checkpoints, other.checkpoints, dirs_exist_ok=True)
    for later in (4, 5, 6):
        shutil.rmtree(other.checkpoints / f"checkpoint-{later}")
    train_policy.run(other)
    assert points_of(other)[-1] == points_of(one)[-1]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"algorithm": "grpo"}, r"train_policy\.critic: is read by parts\.advantage gae alone"),
        ({"parts": {"ratio_over": "completion"}}, r"train_policy\.parts\.ratio_over: completion: gae gives each token"),
        ({"beta": 0.0, "adaptive_kl": {"target": 1.0}}, r"train_policy\.adaptive_kl: multiplies beta, which is 0"),
        (
            {"rewards": [{"type": "length", "target": [0, 9]}], "critic": {"model": "reward_model"}},
            r"train_policy\.critic\.model: reward_model: no reward model is among",
        ),
        ({"rollout_batch_size": 12}, r"train_policy: rollout_batch_size 12 is no multiple of global_batch_size 8"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_loaded(
    tmp_path: Path, inputs: dict[str, Path], changes: dict[str, Any], text: str
) -> None:
    config = TrainPolicyConfig.model_validate(CONFIG.model_dump() | changes)
    nothing = {} if "rollout_batch_size" in changes else {"start_model": tmp_path / "none"}
    with pytest.raises(BadConfigError, match=text):
        train_policy.run(make_context(tmp_path, StageName.TRAIN_POLICY, config, {**inputs, **nothing}))
