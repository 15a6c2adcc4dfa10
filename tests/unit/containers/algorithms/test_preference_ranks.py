"""Pairs train the same policy on one rank, on two that each hold the model, and on two that divide it among them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file

from containers.contracts.configs.compute_reference import ComputeReferenceConfig
from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import REFERENCE_FILE, StageName
from tests.unit.factories.spec_factory import CPU, colour_rows, make_spec, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = [pytest.mark.stages, pytest.mark.slow]

TOLERANCE = 5e-6
FIELDS: dict[str, Any] = {
    "max_length": 256,
    # A pair or two; so the ranks seldom have equally many packs.
    "pack_tokens": 160,
    "optimizer": OptimizerSettings(learning_rate=1e-3),
    "schedule": TrainingSchedule(max_steps=6, eval_steps=3),
    "sft_weight": 0.2,
}
CONFIGS = {
    "adapters": TrainDpoConfig(lora=LoraSettings(r=4, alpha=8), **FIELDS),
    "every weight, kto": TrainDpoConfig(lora=None, loss="kto", gradient_checkpointing=False, **FIELDS),
}


def ran(
    folder: Path,
    inputs: dict[str, Path],
    config: TrainDpoConfig | ComputeReferenceConfig,
    *,
    ranks: int,
    distribution: str = "ddp",
) -> Path:
    """The work folder of the stage with that configuration."""
    name = f"{config.stage}-{ranks}-{distribution}"
    batch = BatchPlan(
        global_batch_size=8, per_device_batch_size=2, num_processes=ranks, gradient_accumulation_steps=4 // ranks
    )
    profile = CPU.model_copy(update={"num_processes": ranks, "distribution": distribution})
    work = folder / name
    work.mkdir()
    spec = make_spec(work, StageName(config.stage), config, inputs, batch=batch, profile=profile)
    file = folder / f"{name}-spec.json"
    file.write_text(spec.model_dump_json())
    ended = subprocess.run(
        [sys.executable, "-m", "containers.stages.entry", str(file)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return work


def curve_of(work: Path) -> list[float]:
    points = [json.loads(line)["values"] for line in (work / "output" / "curves.jsonl").read_text().splitlines()]
    names = ("loss", "grad_norm", "margin", "eval_loss", "eval_accuracy", "entropy")
    return [point[name] for point in points for name in names if name in point]


@pytest.mark.parametrize("kind", CONFIGS)
def test_ranks_train_the_policy_of_one_rank_whether_or_not_they_divide_the_model(tmp_path: Path, kind: str) -> None:
    rows = colour_rows(48)
    for row in rows[::3]:
        row["prompt"] = [{"role": "user", "content": row["prompt"][0]["content"] * 4}]
    inputs = {
        "pairs": write_pairs(tmp_path / "pairs", rows),
        "start_model": save_causal_model(tmp_path / "start", scale=0.02, seed=3),
    }
    ways = [(1, "ddp"), (2, "ddp"), (2, "fsdp")]
    settings = ComputeReferenceConfig().for_training(CONFIGS[kind])
    one, two = (ran(tmp_path, inputs, settings, ranks=ranks) / "output" for ranks in (1, 2))
    alone, shared = (load_numpy(place / REFERENCE_FILE) for place in (one, two))
    assert all(alone[split] == pytest.approx(shared[split], rel=1e-5) for split in ("0", "1"))
    inputs["reference"] = two
    works = [ran(tmp_path, inputs, CONFIGS[kind], ranks=ranks, distribution=how) for ranks, how in ways]
    whole, *others = [dict(load_file(work / "output" / "model" / "model.safetensors")) for work in works]
    for other in others:
        assert max(float((other[name] - whole[name]).abs().max()) for name in whole) < TOLERANCE
    for work in works[1:]:
        assert curve_of(work) == pytest.approx(curve_of(works[0]), rel=1e-4, abs=1e-5)
    assert "The model is divided over 2 ranks" in (works[2] / "events.jsonl").read_text()
    assert all(torch.isfinite(weight).all() for weight in whole.values())
