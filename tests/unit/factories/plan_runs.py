"""Runs whose pairs have known lengths, and the figures of their plans."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.names import StageName
from tasks.config.loading import LoadedConfig, load_run_config
from tasks.plan.figures import Figure, StagePlan
from tasks.plan.run_plan import RunPlan
from tests.unit.factories.run_files import write_run

SHAPE = {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 50_000,
}


# The ranks write completions by themselves, whatever the run's file says.
BY_RANKS = ("train_policy.rollout_engine=shared_prompts", "train_policy.vllm_memory_fraction=null")


def run_by_ranks(path: Path, *, overrides: Sequence[str] = (), profile: str | None = None) -> LoadedConfig:
    """The run of that file with `BY_RANKS`, before the overrides."""
    return load_run_config(path, overrides=[*BY_RANKS, *overrides], profile=profile)


def figure_of(plan: RunPlan, stage: StageName, start: str) -> Figure:
    """The stage's first figure or part of memory whose name begins so."""
    planned = stage_of(plan, stage)
    return next(figure for figure in (*planned.figures, *planned.memory) if figure.name.startswith(start))


def stage_of(plan: RunPlan, stage: StageName) -> StagePlan:
    """The plan of that stage."""
    return next(planned for planned in plan.stages if planned.stage is stage)


def pair(prompt: int, chosen: int, rejected: int) -> dict[str, str]:
    """So many words in each text."""
    return {"prompt": "a " * prompt, "chosen": "b " * chosen, "rejected": "c " * rejected}


def run_on(folder: Path, pairs: list[dict[str, str]], *, tokenizer: bool = True, **sections: Any) -> LoadedConfig:
    """A run whose model lies in a folder, with a tokenizer that makes a token of each word."""
    for name, rows in (("train", pairs), ("validation", pairs[:1] * 20)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(SHAPE))
    if tokenizer:
        write_tokenizer(model)
    dataset = {"train": str(folder / "train.jsonl"), "validation": str(folder / "validation.jsonl")}
    tree = {"dataset": dataset, "base_model": {"path": str(model)}, "build_base_model": None}
    return load_run_config(write_run(folder, **{**tree, **sections}))


def small_run(folder: Path, *, num_train: int = 125, **sections: object) -> LoadedConfig:
    """A run on so many empty objects and 20 to validate on, which are counted and not read."""
    for name, rows in (("train", num_train), ("validation", 20)):
        (folder / f"{name}.jsonl").write_text("{}\n" * rows)
    dataset = {"train": str(folder / "train.jsonl"), "validation": str(folder / "validation.jsonl")}
    return load_run_config(write_run(folder, **{"dataset": dataset, **sections}))


def write_tokenizer(folder: Path) -> None:
    """A tokenizer.json that makes a token of each word."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "c": 2, "?": 3}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
