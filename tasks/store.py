"""What lies in the artifact store, who still wants it, and what can go.

A run wants the artifacts that it made or reused last (`tasks.stage_history`); reports of older runs keep their figures,
but not the artifacts behind them. A run whose output folder was deleted wants nothing.
"""

import logging
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from containers.contracts.names import CHECKPOINTS_FOLDER, StageName
from containers.digests import DamagedArtifactError, read_manifest, verify_artifact
from tasks.stage_history import run_histories
from tasks.stage_lock import lock_path

logger = logging.getLogger(__name__)

_DAY_S = 86_400.0
_KEY_CHARACTERS = 64


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
    """Something that can go: which key it belongs to, and why nobody misses it."""

    kind: Literal["artifact", "damaged artifact", "replaced artifact", "checkpoints", "unfinished work", "logs"]
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


def verify_artifacts(store_dir: Path) -> Iterator[tuple[StoredArtifact, str]]:
    """Each artifact with what is wrong with it, after every file was compared with its manifest; empty: nothing."""
    for artifact in list_artifacts(store_dir):
        try:
            manifest = verify_artifact(artifact.path)
        except (DamagedArtifactError, OSError) as error:
            yield artifact, str(error)
        else:
            wrong_place = (manifest.stage, manifest.key) != (artifact.stage, artifact.key)
            yield artifact, f"{artifact.path} holds {manifest.stage} {manifest.key[:12]}" if wrong_place else ""


def find_garbage(store_dir: Path, *, older_than_days: float) -> tuple[Garbage, ...]:
    """What can go without any run doing work again that it would not do anyway.

    Args:
        older_than_days: what no run wants is kept that long after it was last touched.
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


def remove(garbage: Garbage, store_dir: Path) -> str:
    """Delete it, unless somebody works on its key. Returns why it was left; empty: it is gone."""
    lock = FileLock(lock_path(store_dir / "work" / garbage.stage / garbage.key))
    try:
        with lock.acquire(timeout=0):
            shutil.rmtree(garbage.path)
    except Timeout:
        return "a run works on it"
    except OSError as error:
        return str(error)
    return ""


def _old_artifacts(store_dir: Path, users: dict[str, list[str]], before: float) -> Iterator[Garbage]:
    for stage, folder in _key_folders(store_dir / "artifacts"):
        if not users[folder.name] and folder.stat().st_mtime < before:
            yield _garbage("artifact", stage, folder.name, folder, "no run wants it any more")


def _set_aside_artifacts(store_dir: Path, before: float) -> Iterator[Garbage]:
    for stage in StageName:
        for folder in sorted((store_dir / "artifacts" / stage).glob("*.damaged-*")):
            key = folder.name.partition(".")[0]
            yield _garbage("damaged artifact", stage, key, folder, "it did not match its manifest and was set aside")
        for folder in sorted((store_dir / "artifacts" / stage).glob("*.replaced-*")):
            if folder.stat().st_mtime < before:
                key = folder.name.partition(".")[0]
                yield _garbage("replaced artifact", stage, key, folder, "somebody had the stage made again")


def _work_left(
    store_dir: Path, users: dict[str, list[str]], published: set[tuple[StageName, str]], before: float
) -> Iterator[Garbage]:
    for stage, folder in _key_folders(store_dir / "work"):
        checkpoints = folder / CHECKPOINTS_FOLDER
        if (stage, folder.name) in published:
            if _size_bytes(checkpoints):
                yield _garbage(
                    "checkpoints", stage, folder.name, checkpoints, "the stage finished; its artifact stands"
                )
        elif not users[folder.name] and _last_touched(folder) < before:
            yield _garbage("unfinished work", stage, folder.name, folder, "no run went on with it")


def _old_logs(
    store_dir: Path, users: dict[str, list[str]], published: set[tuple[StageName, str]], before: float
) -> Iterator[Garbage]:
    for stage, folder in _key_folders(store_dir / "attempts"):
        wanted = (stage, folder.name) in published or users[folder.name]
        if not wanted and _last_touched(folder) < before:
            yield _garbage("logs", stage, folder.name, folder, "specs and logs of attempts that no run wants")


def _garbage(
    kind: Literal["artifact", "damaged artifact", "replaced artifact", "checkpoints", "unfinished work", "logs"],
    stage: StageName,
    key: str,
    path: Path,
    why: str,
) -> Garbage:
    return Garbage(kind=kind, stage=stage, key=key, path=path, size_bytes=_size_bytes(path), why=why)


def _users(store_dir: Path) -> dict[str, list[str]]:
    """Key → names of the runs that want it."""
    users: dict[str, list[str]] = defaultdict(list)
    for history in run_histories(store_dir):
        if Path(history.output_dir).is_dir():
            for memory in history.stages.values():
                users[memory.key].append(history.run_name)
    return users


def _key_folders(parent: Path) -> Iterator[tuple[StageName, Path]]:
    for stage in StageName:
        folder = parent / stage
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.is_dir() and not path.is_symlink() and len(path.name) == _KEY_CHARACTERS:
                    yield stage, path


def _size_bytes(folder: Path) -> int:
    """Of the files below, without following links."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if not path.is_dir() else 0
        except OSError:  # deleted meanwhile
            continue
    return total


def _last_touched(folder: Path) -> float:
    times = [folder.stat().st_mtime]
    for path in folder.rglob("*"):
        try:
            times.append(path.lstat().st_mtime)
        except OSError:
            continue
    return max(times)


def _created_at(folder: Path) -> str:
    try:
        return read_manifest(folder).created_at
    except DamagedArtifactError:
        return ""
