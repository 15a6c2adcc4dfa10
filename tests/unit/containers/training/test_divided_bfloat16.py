"""Two ranks divide a model in bfloat16, as on GPUs, and train it as two that hold it whole; gloo on a CPU."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.parts.training import OptimizerSettings, TrainingSchedule
from containers.contracts.configs.stages import StageConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from tests.unit.containers.distributed.test_ranks_agree import curve_of
from tests.unit.containers.rewards.test_several_models import trained
from tests.unit.factories.reward_model_factory import reward_model_config
from tests.unit.factories.spec_factory import CPU, colour_rows, make_spec, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = [pytest.mark.stages, pytest.mark.slow]

BATCH = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=2, gradient_accumulation_steps=1)
PLAN, SLOW = TrainingSchedule(max_steps=4, eval_steps=2), OptimizerSettings(learning_rate=1e-3)
KINDS: dict[str, dict[str, Any]] = {
    "adapters, uneven packs": {"pack_tokens": 120},
    "all weights, checkpointing": {"trainable": "full", "lora": None, "gradient_checkpointing": True},
}
# One rank. A profile without GPUs cannot ask for bfloat16, which is slow there, so it is given after the spec is read.
RANK = """
import sys
from pathlib import Path
from containers.contracts.spec import StageSpec
from containers.stages import train_policy, train_reward_model
from containers.harness.context import StageContext
from containers.harness.recorder import Recorder
spec = StageSpec.model_validate_json(Path(sys.argv[1]).read_text())
spec = spec.model_copy(update={"profile": spec.profile.model_copy(update={"precision": "bf16"})})
work = Path(spec.work_path)
context = StageContext(spec=spec, work=work, recorder=Recorder(work / "events.jsonl"))
for folder in (context.output, context.checkpoints, context.tensorboard):
    folder.mkdir(parents=True, exist_ok=True)
{"train_policy": train_policy, "train_reward_model": train_reward_model}[spec.stage].run(context)
"""


def losses_of(folder: Path, kind: str, *, distribution: str) -> list[float]:
    """Losses, held-out ones among them, of a reward model's training by two ranks."""
    config = reward_model_config(schedule=PLAN, optimizer=SLOW, **KINDS[kind])
    inputs = {"pairs": folder / "pairs", "start_model": folder / "start"}
    work = trained_by_two_ranks(folder / distribution, config, inputs, distribution=distribution)
    points = [json.loads(line)["values"] for line in (work / "output" / "curves.jsonl").read_text().splitlines()]
    return [point[name] for point in points for name in ("loss", "eval_loss") if name in point]


def trained_by_two_ranks(work: Path, config: StageConfig, inputs: dict[str, Path], *, distribution: str) -> Path:
    """The work folder of that training."""
    work.mkdir()
    profile = CPU.model_copy(update={"num_processes": 2, "distribution": distribution})
    spec_file = work / "spec.json"
    spec = make_spec(work, StageName(config.stage), config, inputs, batch=BATCH, profile=profile)
    spec_file.write_text(spec.model_dump_json())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    logs = [work / f"rank-{rank}.log" for rank in range(2)]
    ranks = []
    for rank, log in enumerate(logs):
        variables = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        with log.open("wb") as stream:
            command = [sys.executable, "-c", RANK, str(spec_file)]
            ranks.append(subprocess.Popen(command, env=variables, stdout=stream, stderr=subprocess.STDOUT))
    for process, log in zip(ranks, logs, strict=True):
        assert process.wait(timeout=400) == 0, log.read_text()[-3000:]
    return work


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_divided_in_bfloat16_learns_what_a_whole_one_learns(tmp_path: Path, kind: str) -> None:
    write_pairs(tmp_path / "pairs", colour_rows(32))
    save_causal_model(tmp_path / "start", scale=0.02)
    whole, divided = (losses_of(tmp_path, kind, distribution=how) for how in ("ddp", "fsdp"))
    assert len(whole) == 6
    assert divided == pytest.approx(whole, abs=0.01)


def test_a_divided_policy_begins_as_its_reference_whose_weights_the_reward_model_has_too(tmp_path: Path) -> None:
    """In bfloat16 the two differ where one is computed in another type; the KL of the first step shows it."""
    inputs = {name: path for name, path in trained(tmp_path).items() if not name[-1].isdigit()}
    config = TrainPolicyConfig(
        num_generations=4,
        max_prompt_length=64,
        max_completion_length=8,
        lora=None,
        distribution="fsdp",
        optimizer=OptimizerSettings(learning_rate=1e-3),
        schedule=TrainingSchedule(max_steps=4, save_steps=2),
    )
    work = trained_by_two_ranks(tmp_path / "policy", config, inputs, distribution="fsdp")
    kl = curve_of(work / "output", "kl")
    assert kl[1, "kl"] == 0 < kl[4, "kl"]
    notes = (work / "events.jsonl").read_text()
    assert "is an adapter on the reference's weights" in notes
    assert "The reward model holds: on pairs that its training logged, with the start model's bfloat16 weights" in notes
