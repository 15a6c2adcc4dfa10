"""Estimates of memory, disk and time from a model's shape; pure. Every assumption stands beside its figure."""

import math
from dataclasses import dataclass
from typing import Literal

from containers.contracts.hardware import GIB, GpuProfile
from flows.model_shape import ModelShape, multiplied_parameters

# AdamW keeps two float32 moments; gradients and trained weights are float32 as well.
_MOMENT_BYTES = 8
_GRADIENT_BYTES = 4
_TRAINED_WEIGHT_BYTES = 4
# Values per token that one block keeps for its backward: about 8 hidden vectors beside queries, keys and feed-forward.
_HIDDEN_VECTORS_PER_BLOCK = 8
# The loss holds logits, their float32 copy and its gradient.
_LOGIT_BYTES = 10
_CUDA_CONTEXT_BYTES = int(1.5 * GIB)
# Resident in a training program before any weights: 0.7 GiB were measured on a CPU. CUDA and its libraries add to that.
_PROGRAM_BYTES = int(0.7 * GIB)
_PROGRAM_WITH_CUDA_BYTES = 3 * GIB
# Real conversations fill about half of max_length: some 1,040 tokens a conversation were measured at 2,048.
FILLED_FRACTION = 0.5
# Of the tokens of a conversation that its completion has.
COMPLETION_FRACTION = 0.5
# Without a GPU, TRL's chunked head took so long for each number that it puts out: 50 to 70 ns for log-probability and
# entropy, 100 to 140 ns more for the gradient; drawing a token from them took 26 to 33 ns.
_CPU_LOGIT_SECONDS: dict["HeadWork", float] = {"draw": 30e-9, "judge": 55e-9, "train": 160e-9}
# On a GPU the multiplication counts: forward, and for training its repetition and the gradient of its inputs.
_GPU_LOGIT_OPERATIONS: dict["HeadWork", int] = {"draw": 0, "judge": 2, "train": 6}
# One generated token costs at least this long a block, however small the model: Python and kernel launches.
_SECONDS_PER_BLOCK_AND_TOKEN = 0.8e-3
# Drawing, looking up and adding one value of a bootstrap took 11 to 15 ns on one core.
_SECONDS_PER_RESAMPLED_VALUE = 15e-9
# Starting a program that imports torch and TRL took 6 s on one idle core and 21 s on a busy one.
START_SECONDS = 15.0


HeadWork = Literal["draw", "judge", "train"]


@dataclass(frozen=True)
class AssumedSpeed:
    """What one GPU, or the CPU, is assumed to do; no figure of this machine."""

    flops: float
    memory_bytes_per_s: float
    words: str


@dataclass(frozen=True)
class TrainingLoad:
    """One training stage as the estimates see it.

    Attributes:
        sequences: sequences in one forward on one device.
        max_tokens: tokens of the longest sequence.
        logit_tokens: tokens of a sequence whose logits are held; 0 for a reward model.
        judged_tokens: tokens of a sequence of usual length that the language head judges; 0 for a reward model.
        total: parameters without adapters.
        trainable: trained parameters; equal to `total` where there are no adapters.
    """

    shape: ModelShape
    total: int
    trainable: int
    sequences: int
    max_tokens: int
    logit_tokens: int
    judged_tokens: float
    gradient_checkpointing: bool
    uses_adapters: bool


def assumed_speed(profile: GpuProfile) -> AssumedSpeed:
    """Speed to reckon with on that profile: a third to a quarter of what the boards' data sheets promise."""
    if not profile.num_gpus:
        return AssumedSpeed(2.5e10 * profile.num_threads, 1e10, f"25 GFLOP/s a thread, {profile.num_threads} thread(s)")
    if profile.gpu_memory_gib < 60:
        return AssumedSpeed(8e13, 7e11, "80 TFLOP/s and 0.7 TB/s a GPU, bf16, 48 GB class")
    return AssumedSpeed(2.5e14, 1.6e12, "250 TFLOP/s and 1.6 TB/s a GPU, bf16, 80 GB class")


def value_bytes(profile: GpuProfile) -> int:
    """Bytes of one number in the precision of the profile."""
    return 2 if profile.precision == "bf16" else 4


def training_memory(load: TrainingLoad, profile: GpuProfile) -> tuple[tuple[str, int], ...]:
    """(part, bytes) on one device while training, at the longest sequences."""
    size = value_bytes(profile)
    frozen = load.total * size if load.uses_adapters else 0
    parts = [
        ("frozen weights", frozen),
        (
            "trained weights, gradients, AdamW",
            load.trainable * (_TRAINED_WEIGHT_BYTES + _GRADIENT_BYTES + _MOMENT_BYTES),
        ),
        ("activations", _activation_bytes(load, size)),
        ("logits", load.sequences * load.logit_tokens * load.shape.vocab_size * _LOGIT_BYTES),
    ]
    if profile.num_gpus:
        parts.append(("CUDA context", _CUDA_CONTEXT_BYTES))
    return tuple((name, count) for name, count in parts if count)


def host_memory(load: TrainingLoad, profile: GpuProfile, *, on_device: int) -> tuple[int, str]:
    """Bytes of host memory that all ranks of a training stage take together, and how they come about.

    Weights that are loaded in the type of their files stay pages of these files, which all ranks share; converted,
    each rank holds its own (`benchmarks/load_memory.py`: 1.06 and 1.10 times the files for one rank and two, 2.08 and
    4.15 times from bfloat16 to float32). The first rank copies the model once more to save it.

    Args:
        on_device: bytes on one device; without a GPU, that is host memory too.
    """
    ranks = profile.num_processes
    if not profile.num_gpus:
        return ranks * (_PROGRAM_BYTES + on_device), f"{ranks} program(s) with all that they train"
    loaded = "bfloat16" if load.uses_adapters and profile.precision == "bf16" else "float32"
    weights = load.total * (2 if loaded == "bfloat16" else 4)
    saved = inference_memory(load.total, profile)
    if loaded == load.shape.dtype:
        how = "the weights' files, which all share"
    else:
        weights, how = ranks * weights, f"in each of them the weights, read as {loaded}"
    programs = ranks * _PROGRAM_WITH_CUDA_BYTES
    return programs + weights + saved, f"{ranks} program(s), {how}, and a copy to save"


def inference_memory(total: int, profile: GpuProfile) -> int:
    """Bytes of a frozen model."""
    return total * value_bytes(profile)


def generation_cache(shape: ModelShape, profile: GpuProfile, *, sequences: int, tokens: int) -> int:
    """Bytes of the keys and values that generation keeps for so many sequences of so many tokens."""
    return sequences * tokens * shape.num_hidden_layers * 2 * shape.key_value_width * value_bytes(profile)


def checkpoint_bytes(load: TrainingLoad) -> int:
    """One checkpoint on disk: trained weights and AdamW's moments."""
    return load.trainable * (_TRAINED_WEIGHT_BYTES + _MOMENT_BYTES)


def training_seconds(load: TrainingLoad, profile: GpuProfile, *, sequences: float) -> float:
    """Forward and backward over so many sequences in all, spread over the profile's ranks.

    Frozen weights need no gradient of their own: 4 operations a weight and token instead of 6; checkpointing repeats
    the forward. The language head is frozen or shares the embedding, and is counted by itself.
    """
    operations = 4 if load.uses_adapters else 6
    operations += 2 if load.gradient_checkpointing else 0
    weights = multiplied_parameters(load.shape, head="score")
    tokens = sequences * load.max_tokens * FILLED_FRACTION
    blocks = operations * weights * tokens / (assumed_speed(profile).flops * profile.num_processes)
    judged = sequences * load.judged_tokens
    return blocks + head_seconds(load.shape, profile, tokens=judged, work="train", num_processes=profile.num_processes)


def forward_seconds(
    shape: ModelShape, profile: GpuProfile, *, sequences: float, max_tokens: int, num_processes: int
) -> float:
    """One forward over so many sequences in all, without a language head."""
    tokens = sequences * max_tokens * FILLED_FRACTION
    weights = multiplied_parameters(shape, head="score")
    return 2 * weights * tokens / (assumed_speed(profile).flops * num_processes)


def head_seconds(shape: ModelShape, profile: GpuProfile, *, tokens: float, work: HeadWork, num_processes: int) -> float:
    """The language head over so many tokens in all: to draw the next one, to judge it, or to train on it.

    Without a GPU this is most of the time where the vocabulary is large and the model small.
    """
    if not profile.num_gpus:
        return tokens * shape.vocab_size * _CPU_LOGIT_SECONDS[work] / (profile.num_threads * num_processes)
    operations = _GPU_LOGIT_OPERATIONS[work] * shape.hidden_size * shape.vocab_size
    return operations * tokens / (assumed_speed(profile).flops * num_processes)


def generation_seconds(
    shape: ModelShape, profile: GpuProfile, *, total: int, sequences: float, batch: int, max_tokens: int
) -> float:
    """Plain generation of so many sequences on one device, `batch` at a time, each to its full length.

    A token costs one reading of all weights, or the time to start its kernels, whichever is longer; and drawing it.
    """
    speed = assumed_speed(profile)
    reading = inference_memory(total, profile) / speed.memory_bytes_per_s
    token = max(reading, shape.num_hidden_layers * _SECONDS_PER_BLOCK_AND_TOKEN)
    drawing = head_seconds(shape, profile, tokens=sequences * max_tokens, work="draw", num_processes=1)
    return math.ceil(sequences / batch) * max_tokens * token + drawing


def bootstrap_seconds(*, values: int, num_bootstrap: int, num_means: int) -> float:
    """Intervals of so many means, each of so many values."""
    return values * num_bootstrap * num_means * _SECONDS_PER_RESAMPLED_VALUE


def _activation_bytes(load: TrainingLoad, size: int) -> int:
    shape = load.shape
    tokens = load.sequences * load.max_tokens
    block = (
        _HIDDEN_VECTORS_PER_BLOCK * shape.hidden_size
        + 2 * shape.query_width
        + 4 * shape.key_value_width
        + 4 * shape.intermediate_size
    )
    if load.gradient_checkpointing:
        return tokens * size * (shape.num_hidden_layers * shape.hidden_size + block)
    return tokens * size * shape.num_hidden_layers * block
