"""Checkpoints that can be trusted: a manifest written last into each, and old ones pruned only after it was verified.

The Trainer writes checkpoints in place and never falls back: after a kill during a save, or with one damaged file,
every later resume fails or goes on with silently different numbers, although a good older checkpoint lies beside it.
It also prunes inside its save, by modification time: a kill or a clock set back then costs the last good checkpoint.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.contracts.base import Frozen
from containers.contracts.digests import UnsafeFileError, file_entries, regular_files, write_atomically
from containers.contracts.manifest import FileEntry
from containers.contracts.names import TRAINER_STATE_FILE
from containers.contracts.spec import StageSpec
from containers.harness.recorder import Recorder

CHECKPOINT_MANIFEST_FILE = "checkpoint_manifest.json"
CHECKPOINT_PREFIX = "checkpoint-"
_DISCARDED_PREFIX = "discarded-"


class CheckpointManifest(Frozen):
    """The last file of a checkpoint: what its files are, and what the run was that wrote them."""

    key: str
    num_processes: int = Field(ge=1)
    files: tuple[FileEntry, ...] = Field(min_length=1)


class CheckpointManifestCallback(TrainerCallback):  # type: ignore[misc]
    """Finishes each checkpoint after every rank has written its part, and then prunes the older ones.

    Args:
        limit: how many checkpoints are kept, beside the best one.
    """

    def __init__(self, spec: StageSpec, recorder: Recorder, *, limit: int) -> None:
        self._spec = spec
        self._recorder = recorder
        self._limit = limit

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Wait for all ranks, then write the manifest on the first; prune only where all of it reads back."""
        if distributed.is_initialized():
            distributed.barrier()
        if not state.is_world_process_zero:
            return
        checkpoint = Path(args.output_dir) / f"{CHECKPOINT_PREFIX}{state.global_step}"
        self._recorder.to_disk()
        write_checkpoint_manifest(checkpoint, spec=self._spec)
        if flaw := checkpoint_flaw(checkpoint, spec=self._spec):
            self._recorder.note(
                f"{checkpoint.name} does not read back as it was written: {flaw}. The older ones are kept. Check the "
                "disk; training goes on."
            )
        else:
            prune(checkpoint, limit=self._limit)


def write_checkpoint_manifest(checkpoint: Path, *, spec: StageSpec) -> None:
    """Put the digests of all files of `checkpoint` into its manifest, atomically, after all of them are on disk."""
    entries = tuple(entry for entry in file_entries(checkpoint) if entry.path != CHECKPOINT_MANIFEST_FILE)
    for path in regular_files(checkpoint):
        _to_disk(path)
    manifest = CheckpointManifest(key=spec.key, num_processes=spec.batch.num_processes, files=entries)
    write_atomically(checkpoint / CHECKPOINT_MANIFEST_FILE, manifest.model_dump_json())
    _to_disk(checkpoint.parent)


def checkpoint_flaw(checkpoint: Path, *, spec: StageSpec | None = None) -> str:
    """Why this checkpoint cannot be resumed from; empty where it can. Reads every file of it.

    Args:
        spec: refuses checkpoints of another key or number of ranks.
    """
    try:
        manifest = CheckpointManifest.model_validate_json((checkpoint / CHECKPOINT_MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        return "it has no manifest, so it was never finished" if checkpoint.is_dir() else "it is gone"
    except ValidationError:
        return "its manifest cannot be read"
    except OSError as error:
        return f"its manifest cannot be read: {error.strerror}"
    if spec is not None and manifest.key != spec.key:
        return f"it belongs to key {manifest.key[:12]}…, this stage has {spec.key[:12]}…"
    if spec is not None and manifest.num_processes not in _possible_ranks(spec):
        return f"it was written by {manifest.num_processes} ranks, this stage has {spec.batch.num_processes}"
    try:
        entries = {entry.path: entry for entry in file_entries(checkpoint)}
    except (OSError, UnsafeFileError) as error:
        return str(error)
    damaged = [wanted.path for wanted in manifest.files if entries.get(wanted.path) != wanted]
    return f"{damaged[0]} does not match its manifest" if damaged else ""


def _possible_ranks(spec: StageSpec) -> set[int]:
    """Numbers of ranks whose checkpoints go on exactly where they ended: this attempt's, and those that it left."""
    return {spec.batch.num_processes} | {rung.processes_before for rung in spec.ladder if rung.processes_before}


def was_finished(checkpoint: Path) -> bool:
    """Whether its manifest was written once, readable now or not."""
    return os.path.lexists(checkpoint / CHECKPOINT_MANIFEST_FILE)


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder by step, the newest first; finished or not, whole or not."""
    found = (path for path in folder.glob(f"{CHECKPOINT_PREFIX}*") if checkpoint_step(path) is not None)
    return sorted(found, key=lambda path: checkpoint_step(path) or 0, reverse=True)


def checkpoint_step(checkpoint: Path | None) -> int | None:
    """The optimizer step of a checkpoint folder: 40 for `checkpoint-40`."""
    digits = "" if checkpoint is None else checkpoint.name.removeprefix(CHECKPOINT_PREFIX)
    return int(digits) if digits.isdecimal() else None


def best_of(checkpoint: Path) -> Path | None:
    """The best checkpoint so far that the state of this one names, beside it, wherever the folder lies by now.

    Raises:
        OSError, ValueError: the state cannot be read.
    """
    state = json.loads((checkpoint / TRAINER_STATE_FILE).read_text(encoding="utf-8"))
    best = state.get("best_model_checkpoint")
    return None if best is None else checkpoint.parent / Path(best).name


def prune(newest: Path, *, limit: int) -> None:
    """Delete the checkpoints older than `newest` but for the last `limit`, with it, and the best of each of these."""
    folder, step = newest.parent, checkpoint_step(newest) or 0
    delete_discarded(folder)
    older = [path for path in checkpoints_in(folder) if (checkpoint_step(path) or 0) < step]
    kept = {newest, *older[: limit - 1]}
    try:
        kept |= {best for best in map(best_of, kept) if best is not None}
    except (OSError, ValueError):
        return  # One of the older ones is damaged, so nobody knows which are still needed.
    for path in older:
        if path not in kept:
            discard(path)


def discard(checkpoint: Path) -> None:
    """Delete a checkpoint; a kill in between leaves nothing that looks like one."""
    target = checkpoint.with_name(_DISCARDED_PREFIX + checkpoint.name)
    shutil.rmtree(target, ignore_errors=True)
    checkpoint.rename(target)
    shutil.rmtree(target, ignore_errors=True)


def delete_discarded(folder: Path) -> None:
    """Delete what a kill in the middle of `discard` left."""
    for path in folder.glob(f"{_DISCARDED_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """Have the file or folder survive a power cut, and be read from the disk, not from memory, when it is read next."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
