"""Specs, contexts and pair artifacts made by hand, for tests that run a stage program in this process."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from containers.contracts.configs.stages import StageConfig
from containers.contracts.hardware import BatchPlan, GpuProfile, RequiredContract
from containers.contracts.names import (
    EVENTS_FILE,
    FROZEN_PAIRS_FILE,
    JUDGE_INPUT,
    TEST_PAIRS_FILE,
    TRAIN_PAIRS_FILE,
    TUNE_PAIRS_FILE,
    StageName,
)
from containers.contracts.spec import StageInput, StageSpec
from containers.harness.context import StageContext
from containers.harness.recorder import Recorder

KEY = "c" * 64
CPU = GpuProfile(name="cpu", num_gpus=0, precision="float32", max_per_device_batch_size=32)
_ANIMALS = ("cat", "dog", "horse", "goat", "sheep", "duck", "hen", "pig", "cow", "fox")
_COLOURS = ("red", "green", "blue", "white", "black", "brown", "grey", "pink")


def make_spec(
    work: Path, stage: StageName, config: StageConfig, inputs: Mapping[str, Path], **overrides: Any
) -> StageSpec:
    """A spec for the process runtime on one CPU rank, with a global batch of 8; `overrides` replace its fields."""
    fields: dict[str, Any] = {
        "stage": stage,
        "key": KEY,
        "config": config,
        "inputs": tuple(
            # A judge's model is another one than the run's.
            StageInput(
                name=name,
                path=str(path),
                digest="sha256:1" if name.startswith(JUDGE_INPUT) else "sha256:0",
                origin=f"test/{name}",
            )
            for name, path in inputs.items()
        ),
        "seed": 7,
        "profile": CPU,
        "batch": BatchPlan(
            global_batch_size=8, per_device_batch_size=8, num_processes=1, gradient_accumulation_steps=1
        ),
        "required": RequiredContract(shm_size_bytes=0, num_gpus=0, enforced=False),
        "runtime": "process",
        "work_path": str(work),
    }
    return StageSpec(**{**fields, **overrides})


def make_context(
    tmp_path: Path, stage: StageName, config: StageConfig, inputs: Mapping[str, Path], **overrides: Any
) -> StageContext:
    """A context whose folders exist as the entry program would have made them, in `tmp_path/work/<stage>`."""
    work = tmp_path / "work" / stage.value
    context = StageContext(
        spec=make_spec(work, stage, config, inputs, **overrides), work=work, recorder=Recorder(work / EVENTS_FILE)
    )
    for folder in (context.output, context.checkpoints, context.tensorboard):
        folder.mkdir(parents=True, exist_ok=True)
    return context


def start_stage(spec: StageSpec, log: Path) -> subprocess.Popen[bytes]:
    """The stage's own program, as a process runtime starts it; what it says goes to `log`."""
    spec_file = log.with_suffix(".json")
    spec_file.write_text(spec.model_dump_json())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "containers.stages.entry", str(spec_file)],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def run_stage(spec: StageSpec, log: Path, *, timeout_s: float = 400) -> None:
    """`start_stage`, to its end; one that hangs leaves the stacks of all its processes in the log, and is killed.

    Raises:
        AssertionError: it failed or hung; with the end of its log.
    """
    process = start_stage(spec, log)
    try:
        ended = str(process.wait(timeout_s))
    except subprocess.TimeoutExpired:
        ended = f"none within {timeout_s:g} s"
        _say_stacks_and_kill(psutil.Process(process.pid))
        process.wait()
    assert ended == "0", f"{spec.stage} ended with {ended}.\n{log.read_text(errors='replace')[-12_000:]}"


def _say_stacks_and_kill(stage: psutil.Process) -> None:
    processes = [stage, *stage.children(recursive=True)]
    for process in processes[1:] or processes:  # torchrun itself listens to no SIGUSR1
        process.send_signal(signal.SIGUSR1)
    time.sleep(2)
    for process in processes:
        process.kill()


def colour_rows(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Pairs that can be learnt: the chosen side answers politely and to the point, the rejected one is rude."""
    chance = random.Random(seed)  # noqa: S311
    rows = []
    for number in range(count):
        animal, colour = chance.choice(_ANIMALS), chance.choice(_COLOURS)
        question = f"What colour is {animal} {number}?"
        rows.append(
            {
                "prompt": [{"role": "user", "content": question}],
                "chosen": [{"role": "assistant", "content": f"The {animal} is {colour}."}],
                "rejected": [{"role": "assistant", "content": f"Who cares about a {animal}!"}],
                "margin": float(1 + number % 3),
                "domain": "general" if number % 2 else "stem",
                "language": "english",
                "pair_id": f"pair-{seed}-{number}",
            }
        )
    return rows


def flipped(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same pairs with both sides exchanged: what a wrong sign of the labels gives."""
    return [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]


def write_pairs(
    folder: Path, train: Sequence[Mapping[str, Any]], validation: Sequence[Mapping[str, Any]] | None = None
) -> Path:
    """A filter_dataset artifact with these rows (validation: 24 fresh ones unless given, for every purpose)."""
    folder.mkdir(parents=True, exist_ok=True)
    held_out = colour_rows(24, seed=99) if validation is None else validation
    parts = dict.fromkeys((TUNE_PAIRS_FILE, TEST_PAIRS_FILE, FROZEN_PAIRS_FILE), held_out)
    for name, rows in {TRAIN_PAIRS_FILE: train, **parts}.items():
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=PAIR_SCHEMA), folder / name)
    return folder


_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
PAIR_SCHEMA = pa.schema(
    [
        ("prompt", _MESSAGES),
        ("chosen", _MESSAGES),
        ("rejected", _MESSAGES),
        ("margin", pa.float32()),
        ("domain", pa.string()),
        ("language", pa.string()),
        ("pair_id", pa.string()),
    ]
)
