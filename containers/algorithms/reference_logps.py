"""Log-probabilities of given completions under the reference, computed once, before training.

They come from the same packs and kernel as the policy's. So before the first update, policy and reference agree to the
last bits, and the loss of a pair is log 2 exactly where it should be. The reference is the policy as it is before
training; it takes no memory afterwards. What was computed is kept beside the checkpoints for the next attempt.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import PreTrainedModel

from containers.algorithms.offline_step import Example
from containers.distributed.ranks import any_rank, is_first_rank, spread_over_ranks
from containers.harness.context import StageContext
from containers.harness.recorder import Recorder
from containers.models.trial import evaluating
from containers.packing.attention import packed
from containers.packing.logps import CompletionPack, Cut, causal_of

REFERENCE_FILE = "reference_logps.safetensors"
_FORMAT = 1
_PROGRESS_INTERVAL_S = 1.0

Values = list[tuple[float, ...]]


def computed_reference(
    model: PreTrainedModel | PeftModel,
    examples: Sequence[Example],
    *,
    cut: Cut,
    dtype: torch.dtype,
    recorder: Recorder | None = None,
) -> Values:
    """Return for each example the log-probabilities of its completions, then of its mismatched ones, each a sum.

    Args:
        model: the policy before training, not wrapped yet, after `add_logps`; adapters are left out.
        cut: as in training.
        dtype: that in which training computes.
        recorder: is told of the progress, at most once a second.
    """
    rows = [(example.prompt, ids) for example in examples for ids in (*example.completions, *example.mismatched)]
    packs = cut([prompt for prompt, _ in rows], [ids for _, ids in rows]) if rows else []
    causal, sums = causal_of(model), [0.0] * len(rows)
    is_packed = any(isinstance(pack, CompletionPack) for pack in packs)
    autocast = torch.autocast(causal.device.type, dtype=dtype) if dtype != torch.float32 else nullcontext()
    without_adapters = model.disable_adapter() if isinstance(model, PeftModel) else nullcontext()
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


def reference_of(
    context: StageContext,
    splits: Sequence[Sequence[Example]],
    *,
    model: PreTrainedModel | PeftModel,
    cut: Cut,
    dtype: torch.dtype,
) -> list[list[Example]]:
    """Return the splits with their reference: what an earlier attempt kept, or computed now, each rank its share.

    All ranks must call it.
    """
    key = reference_key(context, splits, dtype=dtype)
    path = context.checkpoints / REFERENCE_FILE
    kept = _read(path, key=key, num_splits=len(splits))
    if any_rank(kept is None):
        work: Callable[[list[Example]], Values] = partial(
            computed_reference, model, cut=cut, dtype=dtype, recorder=context.recorder
        )
        kept = [spread_over_ranks(split, work) for split in splits]
        if is_first_rank():
            _keep(path, kept, key=key)
        what = "were computed with the model as it is before training"
    else:
        what = "are those that an earlier attempt computed"
    context.recorder.note(f"Log-probabilities under the reference {what}.")
    return [with_reference(split, values) for split, values in zip(splits, kept or [], strict=True)]


def reference_key(context: StageContext, splits: Sequence[Sequence[Example]], *, dtype: torch.dtype) -> str:
    """Return 64 hexadecimal digits over all that decides the values: the start model, the tokens and the precision."""
    digest = hashlib.sha256()
    head = {"format": _FORMAT, "model": context.input("start_model").digest, "dtype": str(dtype)}
    digest.update(json.dumps(head, sort_keys=True).encode())
    for split in splits:
        for example in split:
            for ids in (example.prompt, *example.completions, *example.mismatched):
                digest.update(f"{len(ids)}\0".encode() + np.asarray(ids, dtype=np.int64).tobytes())
        digest.update(b"split")
    return digest.hexdigest()


def _keep(path: Path, splits: Sequence[Values], *, key: str) -> None:
    arrays = {str(place): np.asarray(values, dtype=np.float64) for place, values in enumerate(splits)}
    unfinished = path.with_name(f"{path.name}-unfinished")
    save_file(arrays, unfinished, metadata={"key": key, "sha256": _checksum(arrays)})
    unfinished.replace(path)


def _read(path: Path, *, key: str, num_splits: int) -> list[Values] | None:
    """Return what was kept under this key; None if there is nothing, or nothing that can be read."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {str(place): file.get_tensor(str(place)) for place in range(num_splits)}
    except (OSError, SafetensorError):
        return None
    if (metadata.get("key"), metadata.get("sha256")) != (key, _checksum(arrays)):
        return None
    return [[tuple(row) for row in array.tolist()] for array in arrays.values()]


def _checksum(arrays: dict[str, Any]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays.values())).hexdigest()
