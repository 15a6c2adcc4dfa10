"""Publish a finished work folder to the artifact store, and find artifacts there.

A stage may have written anything: links, FIFOs, huge sparse files. No link is followed, and nothing is written into
the folder that the stage could write; a good output is renamed out of it.

CollectError
├── NoResultError      the work folder holds no result of this stage and key
└── UnsafeOutputError  the output holds what no artifact may hold
"""

import errno
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from containers.contracts.digests import (
    DamagedArtifactError,
    UnsafeFileError,
    artifact_digest,
    open_regular,
    regular_files,
    sync_folder,
    verify_artifact,
)
from containers.contracts.manifest import Manifest
from containers.contracts.names import OUTCOME_FILE, OUTPUT_FOLDER, RANK_FAILURES, ProgramName
from containers.contracts.outcome import FailureKind, StageFailure, StageOutcome, StageResult
from containers.contracts.spec import ArtifactRef

logger = logging.getLogger(__name__)

_OUTCOME_ADAPTER: TypeAdapter[StageResult | StageFailure] = TypeAdapter(StageOutcome)
_MAX_OUTCOME_BYTES = 16 * 1024**2
_MAX_FILES = 200_000
# A compressing file system shows small holes; a hostile sparse file of terabytes would take hours to hash.
_MAX_HOLE_BYTES = 64 * 1024**3


class CollectError(Exception):
    """Base: what, why, and what to do."""

    kind = FailureKind.UNEXPECTED


class NoResultError(CollectError):
    """There is nothing to publish."""


class UnsafeOutputError(CollectError):
    """The output holds something that no artifact may hold, or does not match its manifest."""


@dataclass(frozen=True)
class ArtifactLookup:
    """What the store holds for a key. `damage` says what was wrong with it and where it was set aside."""

    artifact: ArtifactRef | None
    damage: str = ""


def read_outcome(work_folder: Path) -> StageResult | StageFailure | None:
    """The outcome that the stage wrote; None where it wrote none that can be read.

    Where rank 0 died before it wrote one, the failure of another rank counts (`_first_rank_failure`).
    """
    return _read_outcome_file(work_folder / OUTCOME_FILE) or _first_rank_failure(work_folder)


def _read_outcome_file(path: Path) -> StageResult | StageFailure | None:
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > _MAX_OUTCOME_BYTES:
                raise UnsafeFileError(f"it has {size:,} bytes; {_MAX_OUTCOME_BYTES:,} are allowed.")
            return _OUTCOME_ADAPTER.validate_json(stream.read(_MAX_OUTCOME_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, UnsafeFileError, ValidationError) as error:
        logger.warning("%s is ignored: %s", path, error)
        return None


def _first_rank_failure(work_folder: Path) -> StageFailure | None:
    """The failure that explains the others: the oldest of a known kind, else the oldest.

    A cancelled rank explains nothing: torchrun stops every rank when another one dies.
    """
    paths = sorted(work_folder.glob(RANK_FAILURES), key=lambda path: path.lstat().st_mtime_ns)
    failures = [found for path in paths if isinstance(found := _read_outcome_file(path), StageFailure)]
    causes = [failure for failure in failures if failure.kind is not FailureKind.CANCELLED]
    return min(causes, key=lambda failure: failure.kind is FailureKind.UNEXPECTED, default=None)


def find_artifact(
    artifacts: Path, *, stage: ProgramName, key: str, whole_up_to_bytes: int | None = None
) -> ArtifactLookup:
    """Find and verify the artifact of a key.

    A damaged one is renamed to `<key>.damaged-<n>`, so that the stage runs again and nothing is lost or reused.

    Args:
        whole_up_to_bytes: as for `verify_artifact`.
    """
    folder = artifacts / stage / key
    if not os.path.lexists(folder):
        return ArtifactLookup(artifact=None)
    try:
        return ArtifactLookup(
            artifact=_reference(folder, _verified(folder, stage=stage, key=key, whole_up_to_bytes=whole_up_to_bytes))
        )
    except (DamagedArtifactError, UnsafeOutputError) as error:
        aside = _set_aside(folder, why="damaged")
        return ArtifactLookup(artifact=None, damage=f"{error} It was set aside as {aside.name}; {stage} runs again.")


def publish(work_folder: Path, artifacts: Path, *, stage: ProgramName, key: str) -> ArtifactRef:
    """Verify `work_folder/output` and rename it to `artifacts/<stage>/<key>`; the one rename makes it visible.

    Where the store already has a verified artifact of that key, it stays and is returned. Call it only after the
    stage's program is dead.

    Raises:
        NoResultError: no result of this stage and key in the work folder.
        UnsafeOutputError: the output has a link, FIFO, device or huge hole, or the manifest does not match.
    """
    outcome = read_outcome(work_folder)
    if not isinstance(outcome, StageResult) or (outcome.stage, outcome.key) != (stage, key):
        raise NoResultError(
            f"{work_folder / OUTCOME_FILE} holds no result of {stage} {key[:12]}; nothing is published."
        )
    output = work_folder / OUTPUT_FOLDER
    _refuse_unsafe(output)
    try:
        manifest = _verified(output, stage=stage, key=key)
    except DamagedArtifactError as error:
        raise UnsafeOutputError(f"The output of {stage} does not match its manifest: {error}") from error
    _take_over(output)
    return _move_in(output, artifacts / stage / key, manifest)


def _verified(folder: Path, *, stage: ProgramName, key: str, whole_up_to_bytes: int | None = None) -> Manifest:
    if folder.is_symlink() or not folder.is_dir():
        raise UnsafeOutputError(f"{folder} is not a folder.")
    manifest = verify_artifact(folder, whole_up_to_bytes=whole_up_to_bytes)
    if (manifest.stage, manifest.key) != (stage, key):
        raise DamagedArtifactError(
            f"The manifest in {folder} is that of {manifest.stage} {manifest.key[:12]}, not of {stage} {key[:12]}."
        )
    return manifest


def _reference(folder: Path, manifest: Manifest) -> ArtifactRef:
    return ArtifactRef(stage=manifest.stage, key=manifest.key, path=str(folder), digest=artifact_digest(manifest))


def replace_artifact(artifact: ArtifactRef, work_folder: Path) -> Path:
    """Rename an artifact to `<key>.replaced-<n>` and delete its work folder, so that the stage can run again.

    Call it only while no other process works on the key.
    """
    aside = _set_aside(Path(artifact.path), why="replaced")
    if work_folder.exists():
        shutil.rmtree(work_folder)
    return aside


def _set_aside(folder: Path, *, why: Literal["damaged", "replaced"]) -> Path:
    number = 1
    while os.path.lexists(aside := folder.with_name(f"{folder.name}.{why}-{number}")):
        number += 1
    folder.rename(aside)
    return aside


def _refuse_unsafe(output: Path) -> None:
    """Refuse an output with links, special files, too many files or huge holes, before any file is read."""
    if output.is_symlink() or not output.is_dir():
        raise UnsafeOutputError(f"{output} is not a folder.")
    hole_bytes = 0
    try:
        for number, path in enumerate(regular_files(output), start=1):
            status = path.lstat()
            hole_bytes += max(0, status.st_size - status.st_blocks * 512)
            if number > _MAX_FILES:
                raise UnsafeOutputError(f"{output} holds more than {_MAX_FILES:,} files.")
            if hole_bytes > _MAX_HOLE_BYTES:
                raise UnsafeOutputError(f"{path} is a sparse file of {status.st_size:,} bytes with nothing in it.")
    except UnsafeFileError as error:
        raise UnsafeOutputError(str(error)) from error


def _take_over(output: Path) -> None:
    """Own every file, make it readable to later stages, clear setuid bits, and sync it to disk before the rename."""
    for path in regular_files(output):
        _own(path, mode=0o644)
    for folder, _, _ in os.walk(output, topdown=False, followlinks=False):
        _own(Path(folder), mode=0o755)


def _own(path: Path, *, mode: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.geteuid() == 0:
            os.fchown(descriptor, 0, 0)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move_in(output: Path, folder: Path, manifest: Manifest) -> ArtifactRef:
    folder.parent.mkdir(parents=True, exist_ok=True)
    lookup = find_artifact(folder.parent.parent, stage=manifest.stage, key=manifest.key)
    if lookup.damage:
        logger.warning("%s", lookup.damage)
    if lookup.artifact:
        return lookup.artifact
    try:
        output.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            # Another run of the same key published first.
            other = find_artifact(folder.parent.parent, stage=manifest.stage, key=manifest.key)
            if other.artifact:
                return other.artifact
        raise
    sync_folder(folder.parent)
    return _reference(folder, manifest)
