"""Ranks whose packs are uneven in number do not wait for each other, and train what one rank trains."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from tests.unit.factories.reward_model_factory import reward_model_config, reward_model_context
from tests.unit.factories.spec_factory import colour_rows, make_spec, run_stage

pytestmark = [pytest.mark.stages, pytest.mark.slow]

ONE_RANK = BatchPlan(global_batch_size=8, per_device_batch_size=8, num_processes=1, gradient_accumulation_steps=1)
TWO_RANKS = BatchPlan(global_batch_size=8, per_device_batch_size=2, num_processes=2, gradient_accumulation_steps=2)
# A row of short pairs; a long pair does not fit and is computed alone.
PACK_TOKENS = 120


def rows() -> list[dict[str, Any]]:
    """Every third prompt is long, so that two ranks seldom have equally many packs."""
    found = colour_rows(96)
    for row in found[::3]:
        row["prompt"] = [{"role": "user", "content": row["prompt"][0]["content"] * 4}]
    return found


def trained(folder: Path, batch: BatchPlan) -> tuple[dict[str, Tensor], list[float]]:
    """Merged weights and the loss of each step, by the stage's own program."""
    context = reward_model_context(folder, rows=rows())
    inputs = {name: context.input_path(name) for name in ("pairs", "start_model")}
    config = reward_model_config(schedule=TrainingSchedule(max_steps=6, eval_steps=6), pack_tokens=PACK_TOKENS)
    work = folder / "stage"
    work.mkdir()
    spec = make_spec(work, StageName.TRAIN_REWARD_MODEL, config, inputs, batch=batch)
    log = folder / "stage.log"
    run_stage(spec, log)
    assert "Pairs are packed" in log.read_text() + (work / "events.jsonl").read_text()
    curves = [json.loads(line)["values"] for line in (work / "output/curves.jsonl").read_text().splitlines()]
    return load_file(work / "output/merged/model.safetensors"), [row["loss"] for row in curves if "loss" in row]


def test_two_ranks_with_uneven_packs_train_the_model_of_one(tmp_path: Path) -> None:
    one, one_losses = trained(tmp_path / "one", ONE_RANK)
    two, two_losses = trained(tmp_path / "two", TWO_RANKS)
    assert two_losses == pytest.approx(one_losses, rel=1e-3)
    assert len(one_losses) == 6
    for name, weight in one.items():
        assert_close(two[name], weight, rtol=1e-3, atol=1e-4)
