"""Load a model on all GPUs of an evaluation: whole on each, or a share on each of those that hold it together."""

from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from containers.contracts.hardware import GpuProfile
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.spread import Spread, spread_over_gpus
from containers.models.loading import give_pad_token, load_causal_model, load_reward_model, load_tokenizer
from containers.models.tensor_parallel import require_divisible, shell

# A language model and its tokenizer.
Writer: TypeAlias = tuple[Any, Any]


def reward_model_over_gpus(folder: Path, profile: GpuProfile) -> tuple[PreTrainedModel, Spread[PreTrainedModel] | None]:
    """Load a saved reward model; return what this process has of it, and the programs that hold it too.

    Where programs hold it together, this process has its shell, without weights.

    Raises:
        BadConfigError: so many GPUs cannot divide it.
        MissingPrerequisiteError: weights are missing, for example the score head, or the folder is damaged.
        DivergedError: a weight is NaN or infinite.
    """
    dtype, team = compute_dtype(profile), profile.tensor_parallel
    found: list[PreTrainedModel] = []

    def load() -> None:
        found.append(load_reward_model(folder, dtype=dtype, device=compute_device(profile)))

    if team > 1:
        require_divisible(AutoModelForSequenceClassification, folder, share_of=team)
        found.append(shell(AutoModelForSequenceClassification, folder, dtype=dtype))
        give_pad_token(found[0], folder)
    arguments = {"folder": folder, "dtype": dtype, "share_of": team}
    spread = spread_over_gpus(load_classifier, arguments, profile=profile, meanwhile=load if team == 1 else _nothing)
    return found[0], spread


def load_classifier(folder: Path, dtype: torch.dtype, device: torch.device | str, share_of: int = 1) -> PreTrainedModel:
    """Load a saved reward model, or a share of it, as a program on a further GPU has it."""
    return load_reward_model(folder, dtype=dtype, device=device, share_of=share_of)


def writer_over_gpus(
    folder: Path, profile: GpuProfile, tokenizer: PreTrainedTokenizerBase
) -> tuple[Writer, Spread[Writer] | None]:
    """Load a saved language model; return it with its tokenizer, and the programs, as `reward_model_over_gpus`."""
    dtype, team = compute_dtype(profile), profile.tensor_parallel
    found: list[PreTrainedModel] = []

    def load() -> None:
        found.append(load_causal_model(folder, dtype=dtype, device=compute_device(profile)))

    if team > 1:
        require_divisible(AutoModelForCausalLM, folder, share_of=team)
        found.append(shell(AutoModelForCausalLM, folder, dtype=dtype))
    arguments = {"folder": folder, "dtype": dtype, "share_of": team}
    spread = spread_over_gpus(load_writer, arguments, profile=profile, meanwhile=load if team == 1 else _nothing)
    return (found[0], tokenizer), spread


def load_writer(folder: Path, dtype: torch.dtype, device: torch.device | str, share_of: int = 1) -> Writer:
    """Load a saved language model, or a share of it, with its tokenizer, as a program on a further GPU has it."""
    return load_causal_model(folder, dtype=dtype, device=device, share_of=share_of), load_tokenizer(folder)


def _nothing() -> None:
    """Nothing is loaded here: teams hold the model."""
