"""Trainings of a tiny reward model on pairs that can be learnt, for the tests of train_reward_model."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import TrainingInfo
from containers.evals.sample_predictions import both_conversations, read_sample_predictions
from containers.harness.context import StageContext
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model


def reward_model_config(**changes: Any) -> TrainRewardModelConfig:
    """24 steps with a small adapter, evaluated and saved every 4; `changes` replace its fields."""
    fields: dict[str, Any] = {
        "max_length": 256,
        "lora": LoraSettings(r=4, alpha=8),
        "gradient_checkpointing": False,
        "optimizer": OptimizerSettings(learning_rate=3e-3),
        "schedule": TrainingSchedule(max_steps=24, eval_steps=4),
    }
    return TrainRewardModelConfig(**{**fields, **changes})


def reward_model_context(
    tmp_path: Path, *, rows: Sequence[Mapping[str, Any]] | None = None, **changes: Any
) -> StageContext:
    """A context with 96 colour pairs, or `rows`, and a tiny start model; `changes` go into the config."""
    pairs = write_pairs(tmp_path / "pairs", colour_rows(96) if rows is None else rows)
    start = tmp_path / "start"
    if not start.exists():
        save_causal_model(start, scale=0.02)
    inputs = {"pairs": pairs, "start_model": start}
    return make_context(tmp_path, StageName.TRAIN_REWARD_MODEL, reward_model_config(**changes), inputs)


def values_of(metrics: tuple[Metric, ...]) -> dict[str, float]:
    """The metrics by name."""
    return {metric.name: metric.value for metric in metrics}


def training_info_of(context: StageContext) -> TrainingInfo:
    """The record that the training left."""
    return TrainingInfo.model_validate_json((context.output / "training_info.json").read_bytes())


def merged_sha256(output: Path) -> str:
    """Digest of the merged weights in the stage's output folder."""
    return hashlib.sha256((output / "merged" / "model.safetensors").read_bytes()).hexdigest()


def transformers_scores(folder: Path, conversations: list[list[dict[str, str]]]) -> list[float]:
    """By nothing but transformers, as anybody would who is given the folder."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    scores = []
    for conversation in conversations:
        inputs = tokenizer.apply_chat_template(conversation, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            scores.append(model(**inputs).logits[0, 0].item())
    return scores


def logged_scores(context: StageContext) -> tuple[list[list[dict[str, str]]], list[float]]:
    """Sixteen validation conversations, and the scores that training logged for them."""
    samples = read_sample_predictions(context.output)[:8]
    return (
        [side for sample in samples for side in both_conversations(sample)],
        [score for sample in samples for score in (sample.score_chosen, sample.score_rejected)],
    )
