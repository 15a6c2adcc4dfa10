"""Make, hold, list and remove folders that combine an adapter with its base model, beside the hub's fetched files.

Such a folder has the adapter's files and the tokenizer at its top, and the base model's files in `base/`. They are
links to files on this disk, or copies if links cannot be made. The same files get one folder. A process that uses a
folder holds a shared kernel lock (flock) on it until it ends; a process that removes it needs the exclusive lock.
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
from tasks.sources.hub import hub_cache, link_or_copy
from tasks.store.history import what_runs_want

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_BUILDING, _REMOVING = ".building-", ".removing-"
_DAY_S = 86_400.0
# A new folder is unlocked for a moment.
_ABANDONED_AFTER_S = 3600.0
# Folder → the descriptor that holds its lock; closed by the kernel.
_HELD: dict[Path, int] = {}


@dataclass(frozen=True)
class ModelFiles:
    """Files of one folder, and the folder's name for users."""

    folder: Path
    names: tuple[str, ...]
    origin: str

    def identity(self) -> list[tuple[str, str, int, int]]:
        """Facts that change when a file changes; reading all the weights would take minutes."""
        facts = ((name, (self.folder / name).stat()) for name in self.names)
        return [(str(self.folder), name, found.st_size, found.st_mtime_ns) for name, found in facts]


@dataclass(frozen=True)
class AdapterFolder:
    """An adapter with its base model.

    Attributes:
        own_bytes: what removing it would free.
        shared_bytes: of files that exist elsewhere too, as most of the base model's do.
        last_used: when a process last used it, seconds since 1970.
        used_by: names of the runs of a store that last used it as input.
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
        """Whether its creation or its removal was interrupted."""
        return self.path.name.startswith(".")


def adapters_root() -> Path:
    """Parent of all these folders."""
    return hub_cache().parent / "rlhf-snapshots" / "adapters"


def adapter_on_base(adapter: ModelFiles, base: ModelFiles) -> Path:
    """Return the folder that combines both, made if it does not exist, and held until this process ends.

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
                f"The adapter {adapter.origin} cannot be combined with its base model in {folder}: {error}.",
                "Free space, or set HF_HOME to a folder on another disk.",
            ) from error
    return folder


def hold(folder: Path) -> bool:
    """Hold the folder until this process ends. Return False if there is none, or none any more."""
    held = _HELD.get(folder)
    if held is not None and not _is_at(held, folder):  # removed since, and perhaps made again
        os.close(_HELD.pop(folder))
        held = None
    if held is None:
        try:
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return False
        with suppress(OSError):  # without locks in the file system, only the time of its last use keeps a folder
            fcntl.flock(held, fcntl.LOCK_SH)
        if not _is_at(held, folder):
            os.close(held)
            return False
        _HELD[folder] = held
    with suppress(OSError):  # it may belong to another user
        os.utime(folder)
    return True


def list_adapter_folders(store_dir: Path) -> tuple[AdapterFolder, ...]:
    """List all these folders, the last used first; `used_by` has the runs of that store only."""
    folders = sorted(adapters_root().glob("*"))
    users = _users(store_dir) if folders else {}
    found = []
    for path in folders:
        with suppress(FileNotFoundError, NotADirectoryError):  # another process removed it meanwhile; a stray file
            found.append(_look_at(path, users))
    return tuple(sorted(found, key=lambda item: item.last_used, reverse=True))


def find_unused(store_dir: Path, *, older_than_days: float) -> tuple[AdapterFolder, ...]:
    """List the folders that no process and no run of the store uses. A run that needs one makes it again.

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
    """Delete it unless a process uses it. Return why it was kept; empty: deleted."""
    try:
        with _alone(item.path) as is_alone:
            if not is_alone:
                return "a process uses it"
            # A process that waits for the lock finds nothing at the path, and makes the folder again.
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
    """Put the adapter at the top, the base below. The configuration, and a missing tokenizer, come from the base."""
    (folder / BASE_FOLDER).mkdir()
    for name in base.names:
        link_or_copy(base.folder / name, folder / BASE_FOLDER / name)
    for name in adapter.names:
        link_or_copy(adapter.folder / name, folder / name)
    has_tokenizer = any(name in adapter.names for name in _TOKENIZER_FILES)
    for name in base.names:
        # Beside another tokenizer's files, the base's template would be read instead of that tokenizer's own.
        is_tokenizer = not has_tokenizer and not name.endswith((".safetensors", ".index.json", SCORE_STATISTICS_FILE))
        if (name == "config.json" or is_tokenizer) and not (folder / name).exists():
            link_or_copy(base.folder / name, folder / name)


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
    """Origin of an input → names of the runs that last used it; a run without output folder uses nothing."""
    users: dict[str, list[str]] = {}
    for run in what_runs_want(store_dir):
        for stage in run.stages.values():
            for origin in stage.origins.values():
                users.setdefault(origin, []).append(run.run_name)
    return users


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Yield whether no other process holds the folder; if so, none can take it during the block."""
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
