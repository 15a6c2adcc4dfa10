"""Load the weights of a model folder and report missing ones; code in the folder is not run."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from containers.formatting import one_line
from containers.harness.errors import MissingPrerequisiteError

SCORE_HEAD = "score"
_DIGEST_NUMBERS = 4096
# Of one file, about.
_FILE_BYTES = 4 * 1024**3


def load_weights(
    auto_class: Any, folder: Path, *, dtype: torch.dtype, **settings: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Load the model; return it and the names of missing weights. Safetensors only; no code of the folder is run.

    Raises:
        MissingPrerequisiteError: the folder is no model, is damaged, or has weights of another shape than its config.
    """
    if not (folder / "config.json").is_file():
        raise MissingPrerequisiteError(f"{folder} is no model folder: it has no config.json.")
    try:
        with _quiet_transformers():
            model, info = auto_class.from_pretrained(
                folder,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                # Only to get their names; they are refused below.
                ignore_mismatched_sizes=True,
                **settings,
            )
    except Exception as error:
        raise MissingPrerequisiteError(
            f"The model in {folder} cannot be loaded: {one_line(str(error), 300)}. Download or save it again, or name "
            "another one."
        ) from error
    if info["mismatched_keys"]:
        name, found, wanted = min(info["mismatched_keys"])
        raise MissingPrerequisiteError(
            f"{folder}: {name} has the shape {tuple(found)} in its files, its config needs {tuple(wanted)}."
        )
    return model, sorted(info["missing_keys"])


def weights_digest(model: nn.Module) -> str:
    """Return 16 hex digits that tell trained weights apart: over up to 4,096 numbers, evenly spread, of each of them.

    A step of an optimizer moves every number. Frozen weights do not count; of a divided model, this rank's part does.
    """
    found = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        if weight.requires_grad:
            part = weight.detach()
            part = part.to_local() if isinstance(part, DTensor) else part
            sample = part.flatten()[:: max(1, -(-part.numel() // _DIGEST_NUMBERS))]
            found.update(f"{name} {weight.numel()}\0".encode() + sample.float().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def write_weights(model: PreTrainedModel, folder: Path, *, dtype: torch.dtype, writes: bool) -> None:
    """Write a model's config and weights as safetensors, a few at a time; every rank of a divided one must call this.

    Args:
        writes: whether this rank writes; others only help to gather.
    """
    files, held, held_bytes = dict[str, str](), dict[str, torch.Tensor](), 0

    def flush() -> None:
        nonlocal held_bytes
        name = f"model-{len(set(files.values())) + 1:05d}.safetensors"
        save_file(held, folder / name, metadata={"format": "pt"})
        files.update(dict.fromkeys(held, name))
        held.clear()
        held_bytes = 0

    if writes:
        folder.mkdir(parents=True)
        model.config.save_pretrained(folder)
    for name, weight in model.named_parameters():
        part = weight.detach()
        whole = part.full_tensor() if isinstance(part, DTensor) else part
        if not writes:
            continue
        held[name] = whole.to("cpu", dtype).contiguous()
        held_bytes += held[name].nbytes
        if held_bytes >= _FILE_BYTES:
            flush()
    if writes:
        if held:
            flush()
        index = {"metadata": {}, "weight_map": files}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def require_trunk(missing: Sequence[str], *, folder: Path) -> None:
    """Refuse a model that lacks a weight other than the score head's.

    Raises:
        MissingPrerequisiteError: names the first such weight.
    """
    lost = [name for name in missing if not name.startswith(f"{SCORE_HEAD}.")]
    if lost:
        raise MissingPrerequisiteError(f"{folder} lacks weights of its architecture: {first_of(lost)}.")


def first_of(names: Sequence[str]) -> str:
    """Return the first name, and the number of the others."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence transformers' load report: it warns of a new score head, which is intended; faults are errors here."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
