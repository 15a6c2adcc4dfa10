"""The parts of `benchmarks.on_gpu`, each of which has a process of its own; they leave figures line by line."""

import json
import math
import os
import platform
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.gpu import numbers, speeds
from benchmarks.made_text import question, words
from benchmarks.speed_place import CPU, GPU
from containers.contracts.names import (
    ADAPTER_FOLDER,
    CHECKPOINTS_FOLDER,
    CONTAINER_STAGES,
    CURVES_FILE,
    MODEL_FOLDER,
    StageName,
)
from containers.contracts.spec import ArtifactRef
from containers.selftest.comparison import weights_apart
from containers.training.checkpoints import CHECKPOINT_MANIFEST_FILE, CHECKPOINT_PREFIX
from tasks.checks.bare_stages import BareStages, StageBrokeError
from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig
from tasks.pipeline.stages import BY_NAME, STAGES, walk

RUN_FILE = Path(__file__).with_name("run.yaml")
_MADE_FILE = "made.json"
_PACKAGES = "torch triton transformers trl peft accelerate datasets tokenizers numpy pyarrow pydantic".split()  # noqa: SIM905
_PROGRAMS = tuple(f"containers.stages.{stage}" for stage in CONTAINER_STAGES)
_ADAPTER_WEIGHTS = "adapter_model.safetensors"
_AGAIN, _RESUMED = _REPEATED = ("the same once more", "killed and resumed")
# Kernels of a GPU add in no fixed order, so even a training that is not killed differs from itself.
_PROMISED, _ROUNDING = 2.0, 1e-6
# Small enough for two cores and a minute.
_REHEARSED = (
    "gpu_profile=cpu",
    "train_sft.global_batch_size=8",
    "train_reward_model.global_batch_size=8",
    "train_policy.global_batch_size=8",
    "build_base_model={num_layers: 4, hidden_size: 64, intermediate_size: 128, num_attention_heads: 4, "
    "num_key_value_heads: 2, head_dim: 16, max_position_embeddings: 1024, vocabulary_size: 600}",
    "train_policy.max_completion_length=12",
    "evaluate_policy.max_completion_length=12",
)


@dataclass(frozen=True)
class Work:
    """What a part is given.

    Attributes:
        folder: of data, work folders and artifacts, shared by all parts.
        report: keeps one line of figures.
        is_rehearsal: tiny, and on the processor.
        vocabulary: file of a real vocabulary; None: one is made from the texts.
        limit_s: of this part.
    """

    folder: Path
    report: Callable[[dict[str, Any]], None]
    is_rehearsal: bool
    vocabulary: Path | None
    limit_s: float

    def run(self, *overrides: str) -> RunConfig:
        """Return the run, with these settings changed."""
        data = self.folder / "data"
        given = [f"dataset.train={data / 'train.jsonl'}", f"dataset.validation={data / 'validation.jsonl'}"]
        if self.vocabulary is not None:
            given += [f"tokenizer_file={self.vocabulary.resolve()}", "build_base_model.vocabulary_size=null"]
        rehearsed = _REHEARSED if self.is_rehearsal else ()
        return load_run_config(RUN_FILE, overrides=[*given, *rehearsed, *overrides]).config

    def made(self) -> dict[str, Any]:
        """Return what the stages made, by role."""
        read = json.loads((self.folder / _MADE_FILE).read_text())
        return {role: ArtifactRef.model_validate(made) for role, made in read.items()}

    @property
    def device(self) -> str:
        return "cpu" if self.is_rehearsal else "cuda"


def environment(work: Work) -> None:
    """Say versions and card, and whether every program of a stage can be imported."""
    gpu = torch.cuda.is_available() and not work.is_rehearsal
    work.report(
        {
            "python": platform.python_version(),
            "card": torch.cuda.get_device_name() if gpu else "none",
            "memory_gib": round(torch.cuda.get_device_properties(0).total_memory / 1024**3, 1) if gpu else 0,
            "cores": os.cpu_count(),
            **{name: _version(name) for name in _PACKAGES},
            "not imported": {name: problem for name in _PROGRAMS if (problem := _import_problem(name))},
            "nvidia-smi": _nvidia_smi(),
        }
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _import_problem(name: str) -> str:
    try:
        import_module(name)
    except Exception as error:  # a package of the machine may fail with any error
        return f"{type(error).__name__}: {error}"
    return ""


def _nvidia_smi() -> str:
    tool = shutil.which("nvidia-smi")
    return subprocess.run([tool], capture_output=True, text=True, timeout=60, check=False).stdout if tool else ""


def stages(work: Work) -> None:
    """Run every stage of the pipeline; keep what they made for the parts that follow."""
    write_rows(work.folder / "data", train=60 if work.is_rehearsal else 220, length=20 if work.is_rehearsal else 90)
    bare = BareStages(work.run(), work.folder, limit_s=work.limit_s, report=work.report)
    made: dict[str, Any] = {"checked": None}
    for _ in walk(bare.run, bare, made=made, stages=STAGES):
        kept = {role: one.model_dump() for role, one in made.items() if isinstance(one, ArtifactRef)}
        (work.folder / _MADE_FILE).write_text(json.dumps(kept))


def write_rows(folder: Path, *, train: int, length: int) -> None:
    """Write pairs of made texts: prompts of about so many words, answers of half to one and a half times as many."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)  # noqa: S311 - rows, no secret

    def row() -> dict[str, Any]:
        chosen, rejected = (words(rng, rng.randint(length // 2, length * 3 // 2)) for _ in range(2))
        asked = question(rng, rng.randint(length // 2, length * 3 // 2))
        turns = {"prompt": ("user", asked), "chosen": ("assistant", chosen), "rejected": ("assistant", rejected)}
        return {name: [{"role": role, "content": text}] for name, (role, text) in turns.items()}

    for name, count in (("train", train), ("validation", max(30, train // 4))):
        lines = (json.dumps(row()) for _ in range(count))
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def policies(work: Work) -> None:
    """Train the policy again, killed and resumed, by other algorithms, and in float32, all at the same time.

    The same work twice, and resumed, is compared with the first training: weights bit by bit, and curves. A resumed
    one may be no further from it than `_PROMISED` times the one that was not killed (docs/reliability.md).

    Raises:
        RuntimeError: the resumed training is further away.
    """
    made = work.made()
    float32 = ("gpu_profile.precision=float32", "gpu_profile.tf32=false")
    ways: dict[str, tuple[str, ...]] = {
        "again": (),
        "grpo": ("train_policy.algorithm=grpo",),
        "dapo": ("train_policy.algorithm=dapo",),
        "whole": ("train_policy.lora=null", "train_policy.optimizer.learning_rate=1e-6"),
        **({} if work.is_rehearsal else {"float32": float32}),
    }
    with ThreadPoolExecutor(len(ways) + 1) as pool:
        resumed = pool.submit(_killed_and_resumed, work, made)
        others = {
            way: pool.submit(_trained, work, made, StageName.TRAIN_POLICY, way, *changes)
            for way, changes in ways.items()
        }
    first, distances = Path(made["policy"].path), dict[str, float]()
    for name, future in zip(_REPEATED, (others["again"], resumed), strict=True):
        if (artifact := future.result()) is not None:
            weights = Path(ADAPTER_FOLDER) / _ADAPTER_WEIGHTS
            apart = weights_apart(Path(artifact.path) / weights, first / weights)
            losses = numbers.curves_apart(Path(artifact.path) / CURVES_FILE, first / CURVES_FILE)
            work.report({"what": f"train_policy, {name}, beside the first", **apart, "losses apart": losses})
            distances[name] = apart["relative"]
    if len(distances) == len(_REPEATED) and distances[_RESUMED] > max(_PROMISED * distances[_AGAIN], _ROUNDING):
        raise RuntimeError(f"A resumed training is further from the first than promised: {distances}.")


def _trained(work: Work, made: dict[str, Any], stage: StageName, way: str, *changes: str) -> ArtifactRef | None:
    run = work.run(*changes)
    bare = BareStages(run, work.folder, way=way, limit_s=work.limit_s, report=work.report)
    if stage is StageName.TRAIN_DPO and run.takes_part(StageName.COMPUTE_REFERENCE):
        reference = bare.attempt(BY_NAME[StageName.COMPUTE_REFERENCE], made)
        if reference is None:
            return None
        made = {**made, "reference": reference}
    return bare.attempt(BY_NAME[stage], made)


def _killed_and_resumed(work: Work, made: dict[str, Any]) -> ArtifactRef | None:
    """Kill the training by SIGKILL once its first checkpoint is whole, and start it again."""
    stage = BY_NAME[StageName.TRAIN_POLICY]
    bare = BareStages(work.run(), work.folder, way="killed", limit_s=work.limit_s, report=work.report)
    folder = Path(bare.spec(stage, made).work_path)
    checkpoints = folder / CHECKPOINTS_FOLDER

    def kill_if_saved() -> None:
        if not list(checkpoints.glob(f"{CHECKPOINT_PREFIX}*/{CHECKPOINT_MANIFEST_FILE}")):
            return
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if command[1:3] == ["-m", "containers.stages.entry"] and str(folder) in command[-1]:
                process.kill()

    artifact = bare.attempt(stage, made, on_tick=kill_if_saved)
    return artifact or bare.attempt(stage, made)


def preferences(work: Work) -> None:
    """Train the policy on pairs: DPO in the profile's precision and in float32, KTO, and SimPO, at the same time.

    Before the first update policy and reference are one model, so DPO's first loss is ln 2 but for rounding.
    """
    made, small = work.made(), "optimizer: {learning_rate: 1.0e-4}, schedule: {max_steps: 4, eval_steps: 4}"
    lora = "max_length: 1024, lora: {r: 32, alpha: 64}"
    size = ", global_batch_size: 8" if work.is_rehearsal else ""
    float32 = () if work.is_rehearsal else ("gpu_profile.precision=float32", "gpu_profile.tf32=false")
    ways = {"sigmoid": (), "sigmoid float32": float32, "kto": (), "simpo": ()}
    with ThreadPoolExecutor(len(ways)) as pool:
        found = {
            way: pool.submit(
                _trained,
                work,
                made,
                StageName.TRAIN_DPO,
                way.replace(" ", "-"),
                f"train_dpo={{loss: {way.split()[0]}, {lora}, {small}{size}}}",
                *changes,
            )
            for way, changes in ways.items()
        }
    for way, future in found.items():
        artifact = future.result()
        if artifact is not None and way.startswith("sigmoid"):
            apart = numbers.first_loss(Path(artifact.path) / CURVES_FILE) - math.log(2)
            work.report({"what": f"train_dpo, {way}: first loss beside ln 2", "apart": apart})


def exactness(work: Work) -> None:
    """Compare packed with padded rows, and the device with float32 on the CPU."""
    start = Path(work.made()["start_model"].path) / MODEL_FOLDER
    lengths, count = ((24, 12), 3) if work.is_rehearsal else ((400, 200), 6)
    for figures in numbers.compared(start, device=work.device, lengths=lengths, count=count):
        work.report(figures)


def speed_of_pairs(work: Work) -> None:
    """Time the reward model's step."""
    place = CPU if work.is_rehearsal else GPU
    speeds.reward_model(place, work.report, pairs=8 if work.is_rehearsal else 32, rounds=1 if work.is_rehearsal else 2)


def speed_of_completions(work: Work) -> None:
    """Time the policy's step without generation."""
    rounds = 1 if work.is_rehearsal else 2
    speeds.rloo(CPU if work.is_rehearsal else GPU, work.report, prompts=2 if work.is_rehearsal else 8, rounds=rounds)


def speed_of_generation(work: Work) -> None:
    """Time generation."""
    place, tokens = (CPU, 8) if work.is_rehearsal else (GPU, 64)
    speeds.generation(place, work.report, prompts=4, new_tokens=tokens, rounds=1 if work.is_rehearsal else 2)


# What each part may take at most, in seconds on a GPU; in this order.
PARTS: dict[str, tuple[Callable[[Work], None], float]] = {
    "environment": (environment, 90),
    "stages": (stages, 270),
    "policies": (policies, 120),
    "preferences": (preferences, 90),
    "exactness": (exactness, 90),
    "pairs": (speed_of_pairs, 90),
    "completions": (speed_of_completions, 90),
    "generation": (speed_of_generation, 90),
}


def run_part(name: str, work: Work) -> int:
    """Run one part; return 1 if it broke, after a line that says why."""
    began = time.monotonic()
    try:
        PARTS[name][0](work)
    except StageBrokeError as error:
        work.report({"what": name, "failure": str(error)})
        return 1
    except Exception as error:
        work.report({"what": name, "failure": f"{type(error).__name__}: {error}"})
        raise
    finally:
        work.report({"what": f"{name} ended", "seconds": round(time.monotonic() - began, 1)})
    return 0
