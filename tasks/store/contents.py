"""List what is in the artifact store, which runs use it, and what can be deleted.

A run uses the artifacts that it made or reused last (`tasks.store.history`). Reports of older runs keep their figures,
but not the artifacts behind them. A run whose output folder was deleted uses nothing.
"""

import logging
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from filelock import FileLock
from pydantic import ConfigDict, ValidationError

from containers.contracts.base import Frozen
from containers.contracts.digests import DamagedArtifactError, verify_artifact
from containers.contracts.names import CHECKPOINTS_FOLDER, MANIFEST_FILE, StageName
from tasks.store.history import what_runs_want
from tasks.store.lock import LockError, lock_path, taken

logger = logging.getLogger(__name__)

_DAY_S = 86_400.0
_KEY_CHARACTERS = 64
_PARTS = ("artifacts", "work", "attempts")
GarbageKind: TypeAlias = Literal[
    "artifact", "damaged artifact", "replaced artifact", "checkpoints", "unfinished work", "logs"
]


@dataclass(frozen=True)
class StoredArtifact:
    """One published artifact.

    Attributes:
        created_at: UTC, ISO 8601; empty where the manifest cannot be read.
        used_by: names of the runs that made or reused it last.
    """

    stage: StageName
    key: str
    path: Path
    size_bytes: int
    created_at: str
    used_by: tuple[str, ...]


@dataclass(frozen=True)
class Garbage:
    """Something that can be deleted: its key, and why no run needs it."""

    kind: GarbageKind
    stage: StageName
    key: str
    path: Path
    size_bytes: int
    why: str


def list_artifacts(store_dir: Path) -> tuple[StoredArtifact, ...]:
    """Every published artifact, by stage in the pipeline's order, the newest first."""
    users = _users(store_dir)
    found = [
        StoredArtifact(
            stage=stage,
            key=folder.name,
            path=folder,
            size_bytes=_size_bytes(folder),
            created_at=_created_at(folder),
            used_by=tuple(users[folder.name]),
        )
        for stage, folder in _key_folders(store_dir / "artifacts")
    ]
    order = list(StageName)
    newest_first = sorted(found, key=lambda item: item.created_at, reverse=True)
    return tuple(sorted(newest_first, key=lambda item: order.index(item.stage)))


def verify_artifacts(store_dir: Path) -> Iterator[tuple[StageName, str, str]]:
    """Compare every file of each artifact with its manifest. Yield stage, key and problem.

    The problem is empty if nothing is wrong.
    """
    for stage, folder in _key_folders(store_dir / "artifacts"):
        try:
            manifest = verify_artifact(folder)
        except (DamagedArtifactError, OSError) as error:
            yield stage, folder.name, str(error)
        else:
            wrong_place = (manifest.stage, manifest.key) != (stage, folder.name)
            yield stage, folder.name, f"{folder} holds {manifest.stage} {manifest.key[:12]}" if wrong_place else ""


def find_garbage(store_dir: Path, *, older_than_days: float) -> tuple[Garbage, ...]:
    """Return what can be deleted without extra work for any run.

    Links inside the store are not followed: runs of other stores may use their targets.

    Args:
        older_than_days: what no run uses is kept that long after its last change.
    """
    users = _users(store_dir)
    before = time.time() - older_than_days * _DAY_S
    published = {(stage, folder.name) for stage, folder in _key_folders(store_dir / "artifacts")}
    return (
        *_old_artifacts(store_dir, users, before),
        *_set_aside_artifacts(store_dir, before),
        *_work_left(store_dir, users, published, before),
        *_old_logs(store_dir, users, published, before),
    )


def linked_folders(store_dir: Path) -> tuple[Path, ...]:
    """Folders inside the store that are links to elsewhere. Their targets are never garbage of this store."""
    parts = [store_dir / part for part in _PARTS]
    places = [*parts, *(part / stage for part in parts if not part.is_symlink() for stage in StageName)]
    return tuple(place for place in places if place.is_symlink())


def remove(garbage: Garbage, store_dir: Path) -> str:
    """Delete it unless a run works on its key; of a link, only the link. Return why it was kept; empty: deleted."""
    lock = FileLock(lock_path(store_dir / "work" / garbage.stage / garbage.key))
    try:
        if not taken(lock):
            return "a run works on it"
        if garbage.path.is_symlink():
            garbage.path.unlink()
        else:
            shutil.rmtree(garbage.path)  # follows no link below it
    except (OSError, LockError) as error:
        return str(error)
    finally:
        lock.release()
    return ""


def _old_artifacts(store_dir: Path, users: dict[str, list[str]], before: float) -> Iterator[Garbage]:
    for stage, folder in _key_folders(store_dir / "artifacts", own=True):
        if not users[folder.name] and folder.stat().st_mtime < before:
            yield _garbage("artifact", stage, folder, "no run wants it any more")


def _set_aside_artifacts(store_dir: Path, before: float) -> Iterator[Garbage]:
    for stage, parent in _stage_folders(store_dir / "artifacts", own=True):
        for folder in sorted(parent.glob("*.damaged-*")):
            yield _garbage("damaged artifact", stage, folder, "it did not match its manifest and was set aside")
        for folder in sorted(parent.glob("*.replaced-*")):
            if folder.lstat().st_mtime < before:
                yield _garbage("replaced artifact", stage, folder, "the stage was made again")


def _work_left(
    store_dir: Path, users: dict[str, list[str]], published: set[tuple[StageName, str]], before: float
) -> Iterator[Garbage]:
    for stage, folder in _key_folders(store_dir / "work", own=True):
        if (stage, folder.name) in published:
            if _size_bytes(folder / CHECKPOINTS_FOLDER):
                why = "the stage finished; its artifact is there"
                yield _garbage("checkpoints", stage, folder, why, inside=CHECKPOINTS_FOLDER)
        elif not users[folder.name] and _last_touched(folder) < before:
            yield _garbage("unfinished work", stage, folder, "no run continued it")


def _old_logs(
    store_dir: Path, users: dict[str, list[str]], published: set[tuple[StageName, str]], before: float
) -> Iterator[Garbage]:
    for stage, folder in _key_folders(store_dir / "attempts", own=True):
        wanted = (stage, folder.name) in published or users[folder.name]
        if not wanted and _last_touched(folder) < before:
            yield _garbage("logs", stage, folder, "specs and logs of attempts that no run wants")


def _garbage(kind: GarbageKind, stage: StageName, folder: Path, why: str, *, inside: str = "") -> Garbage:
    key, path = folder.name.partition(".")[0], folder / inside
    if path.is_symlink():
        why += "; it is a link, and only the link goes"
    return Garbage(kind=kind, stage=stage, key=key, path=path, size_bytes=_size_bytes(path), why=why)


def _users(store_dir: Path) -> dict[str, list[str]]:
    """Key → names of the runs that use it."""
    users: dict[str, list[str]] = defaultdict(list)
    for run in what_runs_want(store_dir):
        for stage in run.stages.values():
            users[stage.key].append(run.run_name)
    return users


def _stage_folders(parent: Path, *, own: bool) -> Iterator[tuple[StageName, Path]]:
    """The stages' folders that are there; with `own` only those in the store itself, not behind a link."""
    for stage in StageName:
        folder = parent / stage
        if folder.is_dir() and not (own and (parent.is_symlink() or folder.is_symlink())):
            yield stage, folder


def _key_folders(parent: Path, *, own: bool = False) -> Iterator[tuple[StageName, Path]]:
    for stage, folder in _stage_folders(parent, own=own):
        with os.scandir(folder) as entries:
            keys = sorted(
                entry.name
                for entry in entries
                if len(entry.name) == _KEY_CHARACTERS and entry.is_dir(follow_symlinks=False)
            )
        yield from ((stage, folder / key) for key in keys)


def _size_bytes(folder: Path | str) -> int:
    """Size of the files below, without following links."""
    if Path(folder).is_symlink():
        return 0
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    total += _size_bytes(entry.path) if is_folder else entry.stat(follow_symlinks=False).st_size
                except OSError:  # deleted meanwhile
                    continue
    except OSError:  # there is none, or it was deleted meanwhile
        return total
    return total


def _last_touched(folder: Path) -> float:
    times = [folder.stat().st_mtime]
    for path in folder.rglob("*"):
        with suppress(OSError):
            times.append(path.lstat().st_mtime)
    return max(times)


class _WhenMade(Frozen):
    """Only the time in a manifest; the rest, most of it, is skipped."""

    model_config = ConfigDict(extra="ignore")

    created_at: str


def _created_at(folder: Path) -> str:
    try:
        with open(f"{folder}/{MANIFEST_FILE}", "rb", buffering=0) as stream:
            return _WhenMade.model_validate_json(stream.read()).created_at
    except (OSError, ValidationError):
        return ""
