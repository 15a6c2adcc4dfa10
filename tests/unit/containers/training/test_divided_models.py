"""A model that two ranks divide among them is trained as one that each of them holds whole, and is saved whole."""

import json
import os
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.contracts.spec import StageSpec
from tests.unit.factories.reward_model_factory import reward_model_config
from tests.unit.factories.spec_factory import CPU, colour_rows, make_spec, run_stage, start_stage, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = [pytest.mark.stages, pytest.mark.slow]

TOLERANCE = 5e-6
REWARD, SFT = StageName.TRAIN_REWARD_MODEL, StageName.TRAIN_SFT
PLAN = TrainingSchedule(max_steps=12, eval_steps=4)
BATCH = BatchPlan(global_batch_size=8, per_device_batch_size=2, num_processes=2, gradient_accumulation_steps=2)
SLOW = OptimizerSettings(learning_rate=1e-3)
# A row of short pairs; a long pair does not fit and is computed alone.
PACK_TOKENS = 120
KINDS: dict[str, tuple[StageName, Any]] = {
    "adapters, uneven packs, few pairs evaluated": (
        REWARD,
        reward_model_config(schedule=PLAN, pack_tokens=PACK_TOKENS, optimizer=SLOW, max_eval_pairs=9),
    ),
    "adapters on weights of 4 bits": (
        REWARD,
        reward_model_config(schedule=PLAN, pack_tokens=PACK_TOKENS, optimizer=SLOW, quantization="nf4"),
    ),
    "adapters, padded rows": (REWARD, reward_model_config(schedule=PLAN, pack=False, optimizer=SLOW)),
    "all weights, checkpointing": (
        REWARD,
        reward_model_config(schedule=PLAN, trainable="full", lora=None, gradient_checkpointing=True, optimizer=SLOW),
    ),
    "the head alone, a score token": (
        REWARD,
        reward_model_config(schedule=PLAN, trainable="head", lora=None, use_cls=True, optimizer=SLOW),
    ),
    "fine-tuning, all weights": (SFT, TrainSftConfig(max_length=256, optimizer=SLOW, schedule=PLAN)),
    "fine-tuning, adapters, checkpointing of every second layer": (
        SFT,
        TrainSftConfig(
            max_length=256, optimizer=SLOW, schedule=PLAN, lora=LoraSettings(r=4, alpha=8), gradient_checkpointing=2
        ),
    ),
}


@dataclass
class Trainings:
    """Trainings in a folder of their own; those that each rank holds whole are made once."""

    folder: Path
    made: dict[str, Path] = field(default_factory=dict)

    def work(self, kind: str, *, distribution: str) -> Path:
        """The work folder of that training."""
        name = f"{list(KINDS).index(kind)}-{distribution}"
        if name not in self.made:
            spec = self.spec(kind, name, distribution=distribution)
            log = self.folder / f"{name}.log"
            run_stage(spec, log, timeout_s=500)
            self.made[name] = Path(spec.work_path)
        return self.made[name]

    def spec(self, kind: str, name: str, *, distribution: str) -> StageSpec:
        stage, config = KINDS[kind]
        profile = CPU.model_copy(update={"num_processes": 2, "distribution": distribution})
        work = self.folder / name
        work.mkdir()
        return make_spec(work, stage, config, self._inputs(), batch=BATCH, profile=profile)

    def _inputs(self) -> dict[str, Path]:
        """Every third prompt is long, so that two ranks seldom have equally many packs."""
        start, pairs = self.folder / "start", self.folder / "pairs"
        if not start.exists():
            save_causal_model(start, scale=0.02, seed=3)
            rows = colour_rows(96)
            for row in rows[::3]:
                row["prompt"] = [{"role": "user", "content": row["prompt"][0]["content"] * 4}]
            write_pairs(pairs, rows)
        return {"pairs": pairs, "start_model": start}


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return Trainings(tmp_path_factory.mktemp("divided"))


def weights_of(work: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted((work / "output").glob("*/*.safetensors")):
        found |= {f"{file.parent.name}/{name}": weight for name, weight in load_file(file).items()}
    return found


def curve_of(work: Path) -> dict[tuple[int, str], float]:
    points: dict[tuple[int, str], float] = {}
    for line in (work / "output" / "curves.jsonl").read_text().splitlines():
        point: dict[str, Any] = json.loads(line)
        for name in ("loss", "grad_norm", "eval_loss"):
            if name in point["values"]:
                points[point["step"], name] = point["values"][name]
    return points


def metrics_of(work: Path) -> dict[str, float]:
    outcome = json.loads((work / "outcome.json").read_text())
    return {metric["name"]: metric["value"] for metric in outcome["metrics"]}


def largest_difference(one: dict[Any, Any], other: dict[Any, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float(torch.as_tensor(one[key] - other[key]).abs().max()) for key in one)


@pytest.mark.parametrize("kind", KINDS)
def test_a_divided_model_becomes_what_a_whole_one_becomes(trainings: Trainings, kind: str) -> None:
    whole, divided = (trainings.work(kind, distribution=how) for how in ("ddp", "fsdp"))
    assert "The model is divided over 2 ranks" in (divided / "events.jsonl").read_text()
    assert "The model is divided" not in (whole / "events.jsonl").read_text()
    assert {name for _, name in curve_of(divided)} == {"loss", "grad_norm", "eval_loss"}
    assert largest_difference(curve_of(whole), curve_of(divided)) < TOLERANCE
    assert largest_difference(weights_of(whole), weights_of(divided)) < TOLERANCE
    memory = ("peak_memory",)
    known, found = ({k: v for k, v in metrics_of(work).items() if k not in memory} for work in (whole, divided))
    assert found == pytest.approx(known, abs=1e-4)


@pytest.mark.parametrize("kind", ["all weights, checkpointing", "adapters on weights of 4 bits"])
def test_a_rank_holds_its_share_and_no_more(trainings: Trainings, kind: str) -> None:
    """The embedding and every layer are divided by rows; a half is rounded up to a row in each."""
    work = trainings.work(kind, distribution="fsdp")
    notes = [json.loads(line).get("text", "") for line in (work / "events.jsonl").read_text().splitlines()]
    (note,) = [text for text in notes if "is divided over" in text]
    here, whole = (int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*,\d{3}", note))
    assert 0.5 <= here / whole < 0.52


@pytest.mark.parametrize("kind", ["adapters, uneven packs, few pairs evaluated", "fine-tuning, all weights"])
def test_a_killed_training_of_a_divided_model_goes_on_and_ends_with_the_same_weights(
    trainings: Trainings, kind: str
) -> None:
    whole = trainings.work(kind, distribution="fsdp")
    name = f"killed-{list(KINDS).index(kind)}"
    spec = trainings.spec(kind, name, distribution="fsdp")
    work = Path(spec.work_path)
    process = start_stage(spec, trainings.folder / f"{name}.log")
    deadline = time.monotonic() + 300
    while not (work / "checkpoints/checkpoint-4/checkpoint_manifest.json").exists():
        assert process.poll() is None, (trainings.folder / f"{name}.log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ranks = children_of(process.pid)
    process.kill()
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
    process.wait()
    assert not (work / "outcome.json").exists()
    log = trainings.folder / f"{name}-again.log"
    run_stage(spec, log, timeout_s=500)
    assert json.loads((work / "output/training_info.json").read_text())["resumed_from_step"] >= 4
    assert largest_difference(weights_of(work), weights_of(whole)) == 0


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]
