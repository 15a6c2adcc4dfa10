"""The model that a training starts from, and its tokenizer."""

from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from containers.contracts.configs.parts.training import Quantization
from containers.distributed.devices import compute_device, compute_dtype
from containers.harness.context import StageContext
from containers.models.chat_template import peculiarities
from containers.models.loading import load_causal_model, load_tokenizer, require_own_tokenizer


def load_start_tokenizer(context: StageContext, *, chat_template: str | None, section: str) -> PreTrainedTokenizerBase:
    """Load the start model's tokenizer, with the configured chat template; note what its own template adds.

    Args:
        section: of the run that has the template.
    """
    start = context.input("start_model")
    tokenizer = load_tokenizer(Path(start.path), origin=start.origin, chat_template=chat_template)
    if chat_template is None:
        for peculiarity in peculiarities(tokenizer, setting=f"{section}.chat_template"):
            context.recorder.note(f"Warning: {peculiarity}")
    return tokenizer


def load_start_model(
    context: StageContext,
    tokenizer: PreTrainedTokenizerBase,
    *,
    whole: bool,
    quantization: Quantization | None = None,
) -> PreTrainedModel:
    """Load the start model with all its weights.

    Args:
        whole: every weight is trained, in float32 under autocast; else adapters are, and the frozen weights have the
            profile's precision.
        quantization: of the frozen weights.
    """
    dtype = torch.float32 if whole else compute_dtype(context.spec.profile)
    start, device = context.input_path("start_model"), compute_device(context.spec.profile)
    model = load_causal_model(start, dtype=dtype, device=device, note=context.recorder.note, quantization=quantization)
    require_own_tokenizer(model, tokenizer, folder=start)
    return model
