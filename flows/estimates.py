"""Estimates of memory, disk and time from a model's shape; pure. Every assumption stands beside its figure."""

import math
from dataclasses import dataclass

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
# Real conversations fill about half of max_length: some 1,040 tokens a conversation were measured at 2,048.
FILLED_FRACTION = 0.5
# One generated token costs at least this long a block, however small the model: Python and kernel launches.
_SECONDS_PER_BLOCK_AND_TOKEN = 0.8e-3
# Drawing, looking up and adding one value of a bootstrap took 11 to 15 ns on one core.
_SECONDS_PER_RESAMPLED_VALUE = 15e-9
# Starting a program that imports torch and TRL took 6 s on one idle core and 21 s on a busy one.
START_SECONDS = 15.0


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
        total: parameters without adapters.
        trainable: trained parameters; equal to `total` where there are no adapters.
    """

    shape: ModelShape
    total: int
    trainable: int
    sequences: int
    max_tokens: int
    logit_tokens: int
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
    the forward.
    """
    operations = 4 if load.uses_adapters else 6
    operations += 2 if load.gradient_checkpointing else 0
    weights = multiplied_parameters(load.shape, head="language" if load.logit_tokens else "score")
    tokens = sequences * load.max_tokens * FILLED_FRACTION
    return operations * weights * tokens / (assumed_speed(profile).flops * profile.num_processes)


def forward_seconds(
    shape: ModelShape, profile: GpuProfile, *, sequences: float, max_tokens: int, num_processes: int
) -> float:
    """One forward over so many sequences in all."""
    tokens = sequences * max_tokens * FILLED_FRACTION
    weights = multiplied_parameters(shape, head="score")
    return 2 * weights * tokens / (assumed_speed(profile).flops * num_processes)


def generation_seconds(
    shape: ModelShape, profile: GpuProfile, *, total: int, sequences: float, batch: int, max_tokens: int
) -> float:
    """Plain generation of so many sequences on one device, `batch` at a time, each to its full length.

    A token costs one reading of all weights, or the time to start its kernels, whichever is longer.
    """
    speed = assumed_speed(profile)
    reading = inference_memory(total, profile) / speed.memory_bytes_per_s
    token = max(reading, shape.num_hidden_layers * _SECONDS_PER_BLOCK_AND_TOKEN)
    return math.ceil(sequences / batch) * max_tokens * token


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
