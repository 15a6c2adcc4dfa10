"""The copies of a causal model that a training publishes: save them, and try that they are the model that was saved."""

from collections.abc import Sequence
from statistics import pstdev
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from containers.contracts.names import ADAPTER_FOLDER, MODEL_FOLDER
from containers.distributed.devices import compute_device, compute_dtype
from containers.harness.context import StageContext
from containers.models.loading import load_causal_model, save_adapter, save_merged
from containers.models.trial import evaluating
from containers.packing.logps import causal_of, row_logps
from containers.packing_traits import CompletionConfig
from containers.scoring.copies import SavedCopy, TriedCopies, Values, move_trained_weights

# Conversations of which log-probabilities are compared, and so many tokens of each.
_ROWS, _TOKENS = 4, 512
# Weights are moved until log-probabilities are away by so much of their standard deviation; of that move, a copy may be
# away by a share: in bfloat16 merged adapters are rounded, and layers of int8 round their inputs, which a plain copy
# does not. Chosen, not measured.
_LEAST_MOVE = 0.5
_SHARE = {torch.float32: 0.01, torch.bfloat16: 0.2}
_SHARE_OF_INT8 = 0.5


def save_causal_model(context: StageContext, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write `model/` (adapters merged) and, with adapters, `adapter/`."""
    if isinstance(model, PeftModel):
        origin = context.input("start_model").origin
        save_adapter(model, tokenizer, context.output / ADAPTER_FOLDER, base_model=origin)
    else:
        model.to(compute_dtype(context.spec.profile))
    save_merged(model, tokenizer, context.output / MODEL_FOLDER)


def tried_causal_copies(
    context: StageContext,
    config: CompletionConfig,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sequences: Sequence[Sequence[int]],
) -> TriedCopies:
    """Move the trained weights of a causal model, save its copies, load them and compare log-probabilities of tokens.

    Args:
        context: its output gets the copies.
        model: not trained yet, with its adapters; do not use it afterwards.
        sequences: token ids of the data.
    """
    rows = [list(ids[: _TOKENS + 1]) for ids in sequences if len(ids) > 1][:_ROWS]
    device, dtype = compute_device(context.spec.profile), compute_dtype(context.spec.profile)
    wanted, moved = move_trained_weights(
        model, lambda: _said(model, rows), gap=_mean_gap, least=lambda values: _LEAST_MOVE * pstdev(values)
    )
    folders = (MODEL_FOLDER, ADAPTER_FOLDER) if isinstance(model, PeftModel) else (MODEL_FOLDER,)
    save_causal_model(context, model, tokenizer)
    causal_of(model).cpu()  # off the GPU, to free memory for the copies
    copies = []
    for folder in folders:
        is_plain = folder == MODEL_FOLDER
        copy: Any = load_causal_model(
            context.output / folder if is_plain else context.input_path("start_model"),
            dtype=dtype,
            device=device,
            quantization=None if is_plain else config.quantization,
            spills=is_plain,
        )
        found = _said(copy if is_plain else PeftModel.from_pretrained(copy, context.output / folder), rows)
        del copy
        share = _SHARE_OF_INT8 if is_plain and config.quantization == "int8" else _SHARE[dtype]
        copies.append(SavedCopy(folder, found, _mean_gap(wanted, found), share * moved))
    return TriedCopies(moved, "nats a token", tuple(copies))


def _said(model: Any, rows: Sequence[Sequence[int]]) -> Values:
    """Return the log-probability of each token but the first of each row."""
    with evaluating(model):
        return [value for row in rows for value in row_logps(causal_of(model), row[:1], row[1:]).tolist()]


def _mean_gap(one: Values, other: Values) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)
