"""Load a model on all GPUs of an evaluation: whole on each, or a share on each of those that hold it together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

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
Made = TypeVar("Made")


def reward_model_over_gpus(folder: Path, profile: GpuProfile) -> tuple[PreTrainedModel, Spread[PreTrainedModel] | None]:
    """Load a saved reward model; return what this process has of it, and the programs that hold it too.

    Where programs hold it together, this process has its shell, without weights.

    Raises:
        BadConfigError: so many GPUs cannot divide it.
        MissingPrerequisiteError: weights are missing, for example the score head, or the folder is damaged.
        DivergedError: a weight is NaN or infinite.
    """
    model, spread = _over_gpus(
        load_reward_model, load_reward_model, AutoModelForSequenceClassification, folder, profile
    )
    if profile.tensor_parallel > 1:
        give_pad_token(model, folder)
    return model, spread


def writer_over_gpus(
    folder: Path, profile: GpuProfile, tokenizer: PreTrainedTokenizerBase
) -> tuple[Writer, Spread[Writer] | None]:
    """Load a saved language model; return it with its tokenizer, and the programs, as `reward_model_over_gpus`."""
    model, spread = _over_gpus(load_causal_model, load_writer, AutoModelForCausalLM, folder, profile)
    return (model, tokenizer), spread


def load_writer(folder: Path, dtype: torch.dtype, device: torch.device | str, share_of: int = 1) -> Writer:
    """Load a saved language model, or a share of it, with its tokenizer, as a program on a further GPU has it."""
    return load_causal_model(folder, dtype=dtype, device=device, share_of=share_of), load_tokenizer(folder)


def _over_gpus(
    load: Callable[..., PreTrainedModel],
    make: Callable[..., Made],
    auto_class: Any,
    folder: Path,
    profile: GpuProfile,
) -> tuple[PreTrainedModel, Spread[Made] | None]:
    """Return the model by `load`, or its shell where teams hold it, and programs that hold what `make` makes."""
    dtype, team = compute_dtype(profile), profile.tensor_parallel
    found: list[PreTrainedModel] = []
    if team > 1:
        require_divisible(auto_class, folder, share_of=team)
        found.append(shell(auto_class, folder, dtype=dtype))

    def load_here() -> None:
        if team == 1:
            found.append(load(folder, dtype=dtype, device=compute_device(profile)))

    arguments = {"folder": folder, "dtype": dtype, "share_of": team}
    spread = spread_over_gpus(make, arguments, profile=profile, meanwhile=load_here)
    return found[0], spread
