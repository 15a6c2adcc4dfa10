"""Log-probabilities of given completions under the reference: computed once by compute_reference, read by train_dpo.

They come from packs and a kernel like the policy's. So before the first update, policy and reference agree to the last
bits, and the loss of a pair is log 2 where it should be. The reference is the policy as it is before training; in
training it takes no memory.
"""

import hashlib
import json
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import PreTrainedModel

from containers.algorithms.offline_step import Example
from containers.contracts.configs.parts.training import Quantization
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError, StageError
from containers.harness.recorder import Recorder
from containers.models.trial import evaluating
from containers.packing.attention import packed
from containers.packing.logps import CompletionPack, Cut, causal_of

_FORMAT = 1
# So many times what rounding explains is an error.
_GROSS = 10.0
_PROGRESS_INTERVAL_S = 1.0

Values = list[tuple[float, ...]]


def computed_reference(
    model: PreTrainedModel | PeftModel,
    examples: Sequence[Example],
    *,
    cut: Cut,
    dtype: torch.dtype,
    recorder: Recorder | None = None,
    with_adapters: bool = False,
) -> Values:
    """Return for each example the log-probabilities of its completions, then of its mismatched ones, each a sum.

    Args:
        model: the policy before training, not wrapped yet, after `add_logps`.
        cut: as in training.
        dtype: that in which training computes.
        recorder: is told of the progress, at most once a second.
        with_adapters: compute with the model's adapters in place; else they are left out.
    """
    rows = [(example.prompt, ids) for example in examples for ids in (*example.completions, *example.mismatched)]
    packs = cut([prompt for prompt, _ in rows], [ids for _, ids in rows]) if rows else []
    causal, sums = causal_of(model), [0.0] * len(rows)
    is_packed = any(isinstance(pack, CompletionPack) for pack in packs)
    autocast = torch.autocast(causal.device.type, dtype=dtype) if dtype != torch.float32 else nullcontext()
    leaves_out = isinstance(model, PeftModel) and not with_adapters
    without_adapters = model.disable_adapter() if leaves_out else nullcontext()
    done, told_at_s = 0, -math.inf
    with evaluating(model), without_adapters, autocast, packed(causal) if is_packed else nullcontext():
        for pack in packs:
            if recorder is not None and time.monotonic() - told_at_s >= _PROGRESS_INTERVAL_S:
                told_at_s = time.monotonic()
                recorder.progress(done, len(rows), unit="completions", text="log-probabilities under the reference")
            done += len(pack.rows)
            logps = model(pack=pack)[0]
            for row, own in zip(pack.rows, pack.by_completion(logps), strict=True):
                sums[row] = float(own.double().sum())
    found = iter(sums)
    return [tuple(next(found) for _ in (*example.completions, *example.mismatched)) for example in examples]


def with_reference(examples: Sequence[Example], values: Values) -> list[Example]:
    """Return the examples with their log-probabilities under the reference."""
    return [
        replace(
            example,
            reference=own[: len(example.completions)],
            mismatched_reference=own[len(example.completions) :],
        )
        for example, own in zip(examples, values, strict=True)
    ]


def start_text(examples: Sequence[Example], own: Values, *, dtype: torch.dtype, num_layers: int) -> str:
    """Return how far the untrained policy is from its reference, and how far rounding may move them apart.

    Args:
        examples: some pairs with their reference.
        own: the same under the policy with new adapters, which change nothing.
        num_layers: layers of the model.

    Raises:
        StageError: they are so far apart that the reference must be of another model.
    """
    apart, allowed = [], []
    for example, values in zip(examples, own, strict=True):
        for ids, logp, reference in zip(example.completions, values, example.reference, strict=False):
            apart.append(abs(logp - reference))
            allowed.append(allowed_gap(reference, num_tokens=len(ids), dtype=dtype, num_layers=num_layers))
    worst = max(gap / most for gap, most in zip(apart, allowed, strict=True))
    text = (
        f"before the first step, the policy's log-probabilities of {len(apart)} completions are at most "
        f"{max(apart):.2g} nats from the reference's; rounding in {str(dtype).removeprefix('torch.')} explains up to "
        f"{max(allowed):.2g}"
    )
    if worst > _GROSS:
        raise StageError(
            f"{text[0].upper()}{text[1:]}. The reference is of another model, or one of the two is computed wrongly. "
            "Run compute_reference again (`run.again_from`); if that does not help, set train_dpo.pack to false, and "
            "report it."
        )
    return f"{'Warning: ' if worst > 1 else ''}{text[0].upper()}{text[1:]}."


def allowed_gap(logp: float, *, num_tokens: int, dtype: torch.dtype, num_layers: int) -> float:
    """Return how far rounding may move a completion's log-probability, a sum over its tokens (nats).

    Each layer rounds its two additions by half a bit of the last place; such errors grow like a random walk over the
    layers, and over the tokens. Four times that, relative to the mean log-probability of a token, or to 1 if that is
    smaller. An estimate: it tells another model from rounding, no more.
    """
    of_a_token = max(1.0, abs(logp) / num_tokens)
    return of_a_token * math.sqrt(num_tokens) * 4 * torch.finfo(dtype).eps / 2 * math.sqrt(2 * num_layers)


def reference_key(
    context: StageContext,
    splits: Sequence[Sequence[Example]],
    *,
    dtype: torch.dtype,
    whole_model: bool,
    quantization: Quantization | None = None,
) -> str:
    """Return 64 hexadecimal digits over all that decides the values: the start model, the tokens and the precision."""
    digest = hashlib.sha256()
    model = context.input("start_model").digest
    head = {"format": _FORMAT, "model": model, "dtype": str(dtype), "whole_model": whole_model}
    if quantization is not None:
        head["quantization"] = quantization
    digest.update(json.dumps(head, sort_keys=True).encode())
    for split in splits:
        for example in split:
            for ids in (example.prompt, *example.completions, *example.mismatched):
                digest.update(f"{len(ids)}\0".encode() + np.asarray(ids, dtype=np.int64).tobytes())
        digest.update(b"split")
    return digest.hexdigest()


def write_reference(path: Path, splits: Sequence[Values], *, key: str) -> None:
    """Write the values of each split, with their key."""
    arrays = {str(place): np.asarray(values, dtype=np.float64) for place, values in enumerate(splits)}
    save_file(arrays, path, metadata={"key": key})


def read_reference(path: Path, *, key: str, num_splits: int) -> list[Values]:
    """Read what `write_reference` wrote.

    Raises:
        MissingPrerequisiteError: the file cannot be read, or has another key.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            found = (file.metadata() or {}).get("key")
            arrays = [file.get_tensor(str(place)) for place in range(num_splits)]
    except (OSError, SafetensorError) as error:
        raise MissingPrerequisiteError(f"{path} cannot be read: {error}. Run compute_reference again.") from error
    if found != key:
        raise MissingPrerequisiteError(
            f"{path} has the log-probabilities of other pairs or tokens, or of another model or precision. Run "
            "compute_reference again (`run.again_from`)."
        )
    return [[tuple(row) for row in array.tolist()] for array in arrays]
