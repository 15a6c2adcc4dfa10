"""Checkpoints of a training: write them whole, check them, and find the one to resume from."""

import functools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.contracts.base import Frozen
from containers.contracts.digests import UnsafeFileError, file_entries, regular_files, write_atomically
from containers.contracts.manifest import FileEntry
from containers.contracts.names import CHECKPOINT_MANIFEST_FILE as CHECKPOINT_MANIFEST_FILE
from containers.contracts.names import TRAINER_STATE_FILE
from containers.contracts.spec import StageSpec
from containers.harness.errors import MissingPrerequisiteError
from containers.harness.recorder import Recorder

CHECKPOINT_PREFIX = "checkpoint-"
_DISCARDED_PREFIX = "discarded-"
_SET_ASIDE_PREFIX = "damaged-"
_NUM_KEPT_SET_ASIDE = 2


class CheckpointManifest(Frozen):
    """The last file of a checkpoint: its files, and the stage key and number of ranks that wrote them."""

    key: str
    num_processes: int = Field(ge=1)
    files: tuple[FileEntry, ...] = Field(min_length=1)


class CheckpointManifestCallback(TrainerCallback):  # type: ignore[misc]
    """Finishes each checkpoint after every rank has written its part, and then prunes the older ones.

    Args:
        limit: number of checkpoints to keep, beside the best one.
    """

    def __init__(self, spec: StageSpec, recorder: Recorder, *, limit: int) -> None:
        self._spec = spec
        self._recorder = recorder
        self._limit = limit

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Wait for all ranks, then write the manifest on the first; prune only if all files read back."""
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
    """Write the digests of all files of `checkpoint` into its manifest, atomically, after all files are on disk."""
    entries = tuple(entry for entry in file_entries(checkpoint) if entry.path != CHECKPOINT_MANIFEST_FILE)
    for path in regular_files(checkpoint):
        _to_disk(path)
    manifest = CheckpointManifest(key=spec.key, num_processes=spec.batch.num_processes, files=entries)
    write_atomically(checkpoint / CHECKPOINT_MANIFEST_FILE, manifest.model_dump_json())
    _to_disk(checkpoint.parent)


def checkpoint_flaw(checkpoint: Path, *, spec: StageSpec | None = None) -> str:
    """Return why training cannot resume from this checkpoint; empty if it can. Reads every file of it.

    Args:
        spec: if given, checkpoints of another key or number of ranks are refused.
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
    """Numbers of ranks whose checkpoints resume exactly: this attempt's, and those before its fallbacks."""
    return {spec.batch.num_processes} | {
        fallback.processes_before for fallback in spec.ladder if fallback.processes_before
    }


def was_finished(checkpoint: Path) -> bool:
    """Whether the checkpoint has a manifest, readable or not."""
    return os.path.lexists(checkpoint / CHECKPOINT_MANIFEST_FILE)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, newest step first, including unfinished and damaged ones."""
    found = (path for path in folder.glob(f"{CHECKPOINT_PREFIX}*") if checkpoint_step(path) is not None)
    return sorted(found, key=lambda path: checkpoint_step(path) or 0, reverse=True)


def checkpoint_step(checkpoint: Path | None) -> int | None:
    """Return the optimizer step of a checkpoint folder: 40 for `checkpoint-40`; None if it is no checkpoint."""
    digits = "" if checkpoint is None else checkpoint.name.removeprefix(CHECKPOINT_PREFIX)
    return int(digits) if digits.isdecimal() else None


def best_of(checkpoint: Path) -> Path | None:
    """Return the best checkpoint so far, as this one's state names it, in this one's folder (which may have moved).

    Raises:
        OSError, ValueError: the state cannot be read.
    """
    state = json.loads((checkpoint / TRAINER_STATE_FILE).read_text(encoding="utf-8"))
    best = state.get("best_model_checkpoint")
    return None if best is None else checkpoint.parent / Path(best).name


def prune(newest: Path, *, limit: int) -> None:
    """Keep `newest`, the `limit` - 1 checkpoints before it, and the best of each; delete the other older ones."""
    folder, step = newest.parent, checkpoint_step(newest) or 0
    delete_discarded(folder)
    older = [path for path in checkpoints_in(folder) if (checkpoint_step(path) or 0) < step]
    kept = {newest, *older[: limit - 1]}
    try:
        kept |= {best for best in map(best_of, kept) if best is not None}
    except (OSError, ValueError):
        return  # A kept checkpoint is damaged, so it is unknown which best ones are still needed.
    for path in older:
        if path not in kept:
            discard(path)


def discard(checkpoint: Path) -> None:
    """Delete a checkpoint; a kill midway leaves nothing that looks like one."""
    target = checkpoint.with_name(_DISCARDED_PREFIX + checkpoint.name)
    shutil.rmtree(target, ignore_errors=True)
    checkpoint.rename(target)
    shutil.rmtree(target, ignore_errors=True)


def delete_discarded(folder: Path) -> None:
    """Delete what a kill during `discard` left."""
    for path in folder.glob(f"{_DISCARDED_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """Write the file or folder to disk, against power cuts, and drop it from the page cache: reads test the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def newest_valid_checkpoint(folder: Path, *, spec: StageSpec, recorder: Recorder) -> Path | None:
    """Return the newest checkpoint whose files, and whose best checkpoint's files, match their manifests.

    Reads checkpoints from the newest on until it finds one. Newer damaged ones are renamed to `damaged-checkpoint-…`,
    of which the newest two are kept. Newer unfinished ones are deleted. Each is noted.

    Args:
        folder: holds the checkpoints of one stage key; need not exist.

    Returns:
        None if training starts at step 0: no checkpoint was finished, or `spec.start_over_if_damaged` is set.

    Raises:
        MissingPrerequisiteError: checkpoints were finished, and none can be used. Nothing was moved or deleted: an
            unreadable disk may become readable again.
    """
    delete_discarded(folder)
    flaw_of = functools.cache(functools.partial(checkpoint_flaw, spec=spec))
    flaws: dict[Path, str] = {}
    for checkpoint in checkpoints_in(folder):
        flaw = flaw_of(checkpoint) or _flaw_of_best(checkpoint, flaw_of)
        if not flaw:
            _put_away(flaws, recorder)
            return checkpoint
        flaws[checkpoint] = flaw
    if any(map(was_finished, flaws)) and not spec.start_over_if_damaged:
        raise MissingPrerequisiteError(_nothing_usable(flaws, spec))
    _put_away(flaws, recorder)
    if flaws:
        recorder.note("No valid checkpoint, starting at step 0.")
    return None


def _flaw_of_best(checkpoint: Path, flaw_of: Callable[[Path], str]) -> str:
    """Return why the best checkpoint so far, which the end of training needs, cannot be used; empty if it can."""
    try:
        best = best_of(checkpoint)
    except (OSError, ValueError) as error:
        return f"its state cannot be read: {error}"
    flaw = flaw_of(best) if best else ""
    return f"the best checkpoint so far, {best.name}, is lost: {flaw}" if best and flaw else ""


def _put_away(flaws: Mapping[Path, str], recorder: Recorder) -> None:
    """Rename or delete the unusable checkpoints, so that new ones can take their names."""
    for checkpoint, flaw in flaws.items():
        if was_finished(checkpoint):
            target = checkpoint.with_name(_SET_ASIDE_PREFIX + checkpoint.name)
            shutil.rmtree(target, ignore_errors=True)
            checkpoint.rename(target)
            recorder.note(f"{checkpoint.name} was set aside as {target.name}: {flaw}.")
            _keep_newest_set_aside(checkpoint.parent)
        else:
            discard(checkpoint)
            recorder.note(f"{checkpoint.name} was deleted: {flaw}.")


def _keep_newest_set_aside(folder: Path) -> None:
    def step(path: Path) -> int:
        return checkpoint_step(path.with_name(path.name.removeprefix(_SET_ASIDE_PREFIX))) or 0

    for path in sorted(folder.glob(f"{_SET_ASIDE_PREFIX}*"), key=step, reverse=True)[_NUM_KEPT_SET_ASIDE:]:
        shutil.rmtree(path, ignore_errors=True)


def _nothing_usable(flaws: Mapping[Path, str], spec: StageSpec) -> str:
    found = "\n".join(f"  {checkpoint.name}: {flaw}" for checkpoint, flaw in flaws.items())
    return (
        f"{spec.stage} has checkpoints, and none can be used any more, so it would start again at step 0:\n{found}\n"
        f"Restore the files in work/{spec.stage}/{spec.key}/checkpoints of the store; or let it start over: set "
        "runtime.start_over_if_damaged to true, or delete that folder."
    )
