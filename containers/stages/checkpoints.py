"""Checkpoints that can be trusted: a manifest written last into each, and the newest one that matches its manifest.

The Trainer writes checkpoints in place and never falls back: after a kill during a save, or with one damaged file,
every later resume fails or goes on with silently different numbers, although a good older checkpoint lies beside it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.contracts.base import Frozen
from containers.contracts.manifest import FileEntry
from containers.contracts.spec import StageSpec
from containers.digests import UnsafeFileError, file_entries, write_atomically
from containers.stages.recorder import Recorder

CHECKPOINT_MANIFEST_FILE = "checkpoint_manifest.json"
_PREFIX = "checkpoint-"
_SET_ASIDE_PREFIX = "damaged-"
_TRAINER_STATE_FILE = "trainer_state.json"


class CheckpointManifest(Frozen):
    """The last file of a checkpoint: what its files are, and what the run was that wrote them."""

    key: str
    num_processes: int = Field(ge=1)
    files: tuple[FileEntry, ...] = Field(min_length=1)


class CheckpointManifestCallback(TrainerCallback):  # type: ignore[misc]
    """Writes the manifest of each checkpoint after every rank has written its part."""

    def __init__(self, spec: StageSpec) -> None:
        self._spec = spec

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Wait for all ranks, then write the manifest on the first."""
        if distributed.is_initialized():
            distributed.barrier()
        if state.is_world_process_zero:
            write_checkpoint_manifest(Path(args.output_dir) / f"{_PREFIX}{state.global_step}", spec=self._spec)


def write_checkpoint_manifest(checkpoint: Path, *, spec: StageSpec) -> None:
    """Put the digests of all files of `checkpoint` into its manifest, atomically."""
    entries = tuple(entry for entry in file_entries(checkpoint) if entry.path != CHECKPOINT_MANIFEST_FILE)
    manifest = CheckpointManifest(key=spec.key, num_processes=spec.batch.num_processes, files=entries)
    write_atomically(checkpoint / CHECKPOINT_MANIFEST_FILE, manifest.model_dump_json())


def newest_valid_checkpoint(
    folder: Path, *, spec: StageSpec | None = None, recorder: Recorder | None = None
) -> Path | None:
    """The checkpoint with the most steps whose files, and whose best checkpoint's files, match their manifests.

    Damaged ones are renamed to `damaged-checkpoint-…` and noted, so that neither the Trainer nor a later attempt takes
    them for whole.

    Args:
        folder: where the checkpoints of one stage key lie; need not exist.
        spec: refuses checkpoints of another key or number of ranks.
    """
    found = sorted(folder.glob(f"{_PREFIX}*"), key=_step, reverse=True) if folder.is_dir() else []
    flaws = {checkpoint: _flaw(checkpoint, spec=spec) for checkpoint in found}
    for checkpoint, flaw in flaws.items():
        if flaw:
            _set_aside(checkpoint, flaw, recorder=recorder)
    whole = [checkpoint for checkpoint, flaw in flaws.items() if not flaw]
    for checkpoint in whole:
        best = _best_of(checkpoint)
        if best is None or best in whole:
            return checkpoint
        _set_aside(checkpoint, f"the best checkpoint so far, {best.name}, is lost", recorder=recorder)
    if found and recorder is not None:
        recorder.note("No valid checkpoint, starting at step 0.")
    return None


def _flaw(checkpoint: Path, *, spec: StageSpec | None) -> str:
    """Why this checkpoint cannot be resumed from; empty where it can."""
    try:
        manifest = CheckpointManifest.model_validate_json((checkpoint / CHECKPOINT_MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        return "it has no manifest, so it was never finished"
    except (OSError, ValidationError) as error:
        return f"its manifest cannot be read: {error}"
    if spec is not None and manifest.key != spec.key:
        return f"it belongs to key {manifest.key[:12]}…, this stage has {spec.key[:12]}…"
    if spec is not None and manifest.num_processes != spec.batch.num_processes:
        return f"it was written by {manifest.num_processes} ranks, this stage has {spec.batch.num_processes}"
    try:
        entries = {entry.path: entry for entry in file_entries(checkpoint)}
    except (OSError, UnsafeFileError) as error:
        return str(error)
    damaged = [wanted.path for wanted in manifest.files if entries.get(wanted.path) != wanted]
    return f"{damaged[0]} does not match its manifest" if damaged else ""


def _best_of(checkpoint: Path) -> Path | None:
    """The best checkpoint that the state of this one names, beside it."""
    state = json.loads((checkpoint / _TRAINER_STATE_FILE).read_text(encoding="utf-8"))
    best = state.get("best_model_checkpoint")
    return None if best is None else checkpoint.parent / Path(best).name


def _set_aside(checkpoint: Path, flaw: str, *, recorder: Recorder | None) -> None:
    target = checkpoint.with_name(_SET_ASIDE_PREFIX + checkpoint.name)
    shutil.rmtree(target, ignore_errors=True)
    checkpoint.rename(target)
    if recorder is not None:
        recorder.note(f"{checkpoint.name} was set aside as {target.name}: {flaw}.")


def _step(checkpoint: Path) -> int:
    digits = checkpoint.name.removeprefix(_PREFIX)
    return int(digits) if digits.isdigit() else -1
