"""Folders that hold an adapter with its base model, beside what was fetched from the hub: made, held, listed, removed.

Such a folder has the adapter's files and the tokenizer at its top, and the base model's files in `base/`, as links to
what lies on this disk, or copies where links cannot be made. It is made once for the same files. A process that uses
one holds a shared lock of the kernel (flock) on it, which is gone when the process is; who removes one must have it
alone.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from containers.contracts.certificate import SCORE_STATISTICS_FILE
from containers.contracts.names import BASE_FOLDER
from tasks.sources.errors import UnusableSourceError
from tasks.sources.hub import hub_cache
from tasks.store.history import what_runs_want

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_BUILDING, _REMOVING = ".building-", ".removing-"
_DAY_S = 86_400.0
# A folder is unlocked for a moment after it was begun.
_ABANDONED_AFTER_S = 3600.0
# Folder → the descriptor that holds its lock; closed by the kernel.
_HELD: dict[Path, int] = {}


@dataclass(frozen=True)
class ModelFiles:
    """Files of one folder, and what the folder is called outside."""

    folder: Path
    names: tuple[str, ...]
    origin: str

    def identity(self) -> list[tuple[str, str, int, int]]:
        """What changes when a file does; reading all the weights would take minutes."""
        facts = ((name, (self.folder / name).stat()) for name in self.names)
        return [(str(self.folder), name, found.st_size, found.st_mtime_ns) for name, found in facts]


@dataclass(frozen=True)
class AdapterFolder:
    """An adapter with its base model.

    Attributes:
        own_bytes: what removing it would free.
        shared_bytes: of files that lie elsewhere too, as the base model's mostly do.
        last_used: when a process last took it, seconds since 1970.
        used_by: names of the runs of a store that were judged by it or trained against it last.
        is_held: a process uses it now.
    """

    path: Path
    own_bytes: int
    shared_bytes: int
    last_used: float
    used_by: tuple[str, ...]
    is_held: bool

    @property
    def is_leftover(self) -> bool:
        """Whether its making or its removal was broken off."""
        return self.path.name.startswith(".")


def adapters_root() -> Path:
    """Where all of them lie."""
    return hub_cache().parent / "rlhf-snapshots" / "adapters"


def adapter_on_base(adapter: ModelFiles, base: ModelFiles) -> Path:
    """The folder that holds both, made where it is not there yet, and held until this process ends.

    Raises:
        UnusableSourceError: it cannot be made.
    """
    identity = hashlib.sha256(json.dumps([adapter.identity(), base.identity()]).encode()).hexdigest()
    words = re.sub(r"[^a-z0-9]+", "-", adapter.origin.lower()).strip("-")[-40:].strip("-")
    folder = adapters_root() / f"{words}-{identity[:16]}"
    if hold(folder):
        return folder
    try:
        _make(folder, adapter, base)
    except OSError as error:
        if not hold(folder):  # otherwise another process was faster
            raise UnusableSourceError(
                f"The adapter {adapter.origin} cannot be put together with its base model in {folder}: {error}.",
                "Free space, or set HF_HOME to a folder on another disk.",
            ) from error
    return folder


def hold(folder: Path) -> bool:
    """Use the folder until this process ends; False where there is none, or none any more."""
    held = _HELD.get(folder)
    if held is None or not _is_at(held, folder):
        try:
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return False
        with suppress(OSError):  # where a file system has no locks, only the time of its last use keeps a folder
            fcntl.flock(held, fcntl.LOCK_SH)
        if not _is_at(held, folder):
            os.close(held)
            return False
        _HELD[folder] = held
    with suppress(OSError):  # it may belong to somebody else
        os.utime(folder)
    return True


def list_adapter_folders(store_dir: Path) -> tuple[AdapterFolder, ...]:
    """All of them, the one that was used last first; `used_by` knows the runs of that store only."""
    folders = sorted(adapters_root().glob("*"))
    users = _users(store_dir) if folders else {}
    found = []
    for path in folders:
        with suppress(FileNotFoundError, NotADirectoryError):  # another process removed it meanwhile; a stray file
            found.append(_look_at(path, users))
    return tuple(sorted(found, key=lambda item: item.last_used, reverse=True))


def find_unused(store_dir: Path, *, older_than_days: float) -> tuple[AdapterFolder, ...]:
    """Those that no process uses and no run of the store wants; they are made again where somebody asks for them.

    Args:
        older_than_days: each is kept that long after it was last used.
    """
    now = time.time()
    return tuple(
        item
        for item in list_adapter_folders(store_dir)
        if not item.is_held
        and not item.used_by
        and now - item.last_used >= (_ABANDONED_AFTER_S if item.is_leftover else older_than_days * _DAY_S)
    )


def remove_adapter_folder(item: AdapterFolder) -> str:
    """Delete it, unless a process uses it. Returns why it was left; empty: it is gone."""
    try:
        with _alone(item.path) as is_alone:
            if not is_alone:
                return "a process uses it"
            # Whoever waits for the lock finds nothing at its path, and makes it again.
            doomed = item.path.with_name(f"{_REMOVING}{os.getpid()}-{item.path.name.lstrip('.')}")
            item.path.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        return str(error)
    return ""


def _make(folder: Path, adapter: ModelFiles, base: ModelFiles) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=folder.parent))
    try:
        hold(building)
        _fill(building, adapter, base)
        building.chmod(0o755)  # mkdtemp's 700 would keep the container's user out
        building.rename(folder)
        hold(folder)
    finally:
        descriptor = _HELD.pop(building, None)
        if descriptor is not None:
            os.close(descriptor)
        shutil.rmtree(building, ignore_errors=True)


def _fill(folder: Path, adapter: ModelFiles, base: ModelFiles) -> None:
    """Adapter at the top, base below; configuration and, where the adapter brings none, tokenizer are the base's."""
    (folder / BASE_FOLDER).mkdir()
    for name in base.names:
        _link_or_copy(base.folder / name, folder / BASE_FOLDER / name)
    for name in adapter.names:
        _link_or_copy(adapter.folder / name, folder / name)
    has_tokenizer = any(name in adapter.names for name in _TOKENIZER_FILES)
    for name in base.names:
        # The template of one tokenizer beside the files of another would be read in the place of that one's own.
        is_tokenizer = not has_tokenizer and not name.endswith((".safetensors", ".index.json", SCORE_STATISTICS_FILE))
        if (name == "config.json" or is_tokenizer) and not (folder / name).exists():
            _link_or_copy(base.folder / name, folder / name)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)


def _look_at(path: Path, users: dict[str, list[str]]) -> AdapterFolder:
    facts = [file.lstat() for file in path.rglob("*") if not file.is_dir()]
    here = Counter(found.st_ino for found in facts)
    sizes = {found.st_ino: found.st_size for found in facts}
    own = {found.st_ino for found in facts if here[found.st_ino] == found.st_nlink}
    with _alone(path) as is_alone:
        return AdapterFolder(
            path=path,
            own_bytes=sum(sizes[inode] for inode in own),
            shared_bytes=sum(size for inode, size in sizes.items() if inode not in own),
            last_used=path.stat().st_mtime,
            used_by=tuple(dict.fromkeys(users.get(str(path.resolve()), []))),
            is_held=not is_alone,
        )


def _users(store_dir: Path) -> dict[str, list[str]]:
    """Where an input came from → names of the runs that had it last; a run without output folder wants nothing."""
    users: dict[str, list[str]] = {}
    for run in what_runs_want(store_dir):
        for stage in run.stages.values():
            for origin in stage.origins.values():
                users.setdefault(origin, []).append(run.run_name)
    return users


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Whether nobody else holds the folder; while the block lasts, nobody can take it then."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_alone = True
        except OSError:
            is_alone = False
        yield is_alone
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except OSError:
        return False
