"""bfloat16, as GPU profiles use it, on a CPU: every kind of training ends with copies that score as trained.

A profile without GPUs cannot ask for bfloat16, which is slow there; these tests go past that rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from containers.contracts.certificate import Certificate
from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.scoring.rounding import allowed_difference
from containers.scoring.scorer import score_head_sha256
from containers.stages import evaluate_reward_model, train_policy, train_reward_model, train_sft
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.reward_model_factory import reward_model_config
from tests.unit.factories.spec_factory import CPU, colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

BFLOAT16 = CPU.model_copy(update={"precision": "bf16"})
SHORT = TrainingSchedule(max_steps=4, eval_steps=2)
ADAPTERS = LoraSettings(r=4, alpha=8)
REWARD_MODELS: dict[str, dict[str, Any]] = {
    "adapters, packed": {},
    "adapters, padded": {"pack": False},
    "adapters, a score token, checkpointing": {"use_cls": True, "gradient_checkpointing": True},
    "the head alone": {"trainable": "head", "lora": None},
    "all weights": {"trainable": "full", "lora": None, "optimizer": OptimizerSettings(learning_rate=1e-3)},
    "a centred loss": {"center_rewards_coefficient": 0.01},
}
POLICIES: dict[str, dict[str, Any]] = {
    "adapters": {"lora": ADAPTERS},
    "adapters, padded, transformers' rollouts": {"lora": ADAPTERS, "pack": False, "rollout_engine": "transformers"},
    "all weights": {"lora": None},
}


def start_model(folder: Path) -> Path:
    return save_causal_model(folder / "start", scale=0.02)


def bfloat16_context(folder: Path, stage: StageName, config: Any, inputs: dict[str, Path]) -> StageContext:
    context = make_context(folder, stage, config, inputs)
    return replace(context, spec=context.spec.model_copy(update={"profile": BFLOAT16}))


def notes_of(context: StageContext) -> str:
    return (context.work / "events.jsonl").read_text()


def values_of(metrics: Any) -> dict[str, float]:
    return {metric.name: metric.value for metric in metrics}


@pytest.mark.parametrize("kind", REWARD_MODELS)
def test_a_reward_model_is_trained_and_its_copies_score_as_it_did(tmp_path: Path, kind: str) -> None:
    config = reward_model_config(schedule=SHORT, **REWARD_MODELS[kind])
    inputs = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(48)), "start_model": start_model(tmp_path)}
    context = bfloat16_context(tmp_path, StageName.TRAIN_REWARD_MODEL, config, inputs)
    values = values_of(train_reward_model.run(context))
    assert values["num_steps"] == 4
    assert ("Pairs are packed" in notes_of(context)) == config.pack
    saved = load_file(context.output / "merged" / "model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.bfloat16}
    assert values["reload_max_difference"] <= 0.04


def too_narrow(dtype: torch.dtype, scores: Sequence[float], *, num_layers: int, is_rounded: bool = False) -> float:
    return 1e-9 if is_rounded else allowed_difference(dtype, scores, num_layers=num_layers)


@pytest.mark.parametrize("bound", [allowed_difference, too_narrow], ids=["by layers", "by a trial"])
def test_a_reward_model_of_bfloat16_earns_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: Callable[..., float]
) -> None:
    """Also where rounding moves scores farther than the number of layers says, as in a model of 28 random layers."""
    for module in ("scoring.reload", "certificate.parity"):
        monkeypatch.setattr(f"containers.{module}.allowed_difference", bound)
    pairs = write_pairs(tmp_path / "pairs", colour_rows(48))
    training = bfloat16_context(
        tmp_path,
        StageName.TRAIN_REWARD_MODEL,
        reward_model_config(),
        {"pairs": pairs, "start_model": start_model(tmp_path)},
    )
    train_reward_model.run(training)
    judging = bfloat16_context(
        tmp_path,
        StageName.EVALUATE_REWARD_MODEL,
        evaluate_reward_model.EvaluateRewardModelConfig(max_length=256),
        {"pairs": pairs, "reward_model": training.output},
    )
    values = values_of(evaluate_reward_model.run(judging))
    assert values["accuracy/test"] == 1.0
    parity = Certificate.model_validate_json((judging.output / "certificate.json").read_bytes()).parity
    assert parity.precision == "bfloat16"
    assert parity.holds and parity.num_orders_changed == 0
    assert parity.margin_difference is not None and 0 < parity.margin_difference < 0.05


@pytest.mark.parametrize("lora", [ADAPTERS, None], ids=["adapters", "all weights"])
def test_a_model_is_fine_tuned(tmp_path: Path, lora: LoraSettings | None) -> None:
    config = TrainSftConfig(max_length=256, lora=lora, schedule=SHORT, gradient_checkpointing=True)
    inputs = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(48)), "start_model": start_model(tmp_path)}
    context = bfloat16_context(tmp_path, StageName.TRAIN_SFT, config, inputs)
    assert values_of(train_sft.run(context))["num_steps"] == 4
    saved = load_file(context.output / "model" / "model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.bfloat16}


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_is_trained(tmp_path: Path, kind: str) -> None:
    config = TrainPolicyConfig(
        num_generations=4,
        max_prompt_length=64,
        max_completion_length=8,
        gradient_checkpointing=True,
        optimizer=OptimizerSettings(learning_rate=1e-3),
        schedule=TrainingSchedule(max_steps=2, save_steps=1),
        **POLICIES[kind],
    )
    merged = save_reward_model(tmp_path / "reward_model" / "merged")
    inputs = {
        "certificate": write_certificate(tmp_path / "certificate", score_head_sha256=score_head_sha256(merged)),
        "prompts": write_prompts(tmp_path / "pairs", train=["Hi", "Which one?", "What is red?", "No"]),
        "start_model": start_model(tmp_path),
        "reward_model": tmp_path / "reward_model",
    }
    context = bfloat16_context(tmp_path, StageName.TRAIN_POLICY, config, inputs)
    assert values_of(train_policy.run(context))["num_steps"] == 2
    assert ("Completions are packed" in notes_of(context)) == config.pack
    shares = "computed once for all of its completions." in notes_of(context)
    assert shares == (config.rollout_engine == "shared_prompts")
    saved = load_file(context.output / "model" / "model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.bfloat16}
