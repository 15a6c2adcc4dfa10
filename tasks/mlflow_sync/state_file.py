"""The undelivered runs of a process, on disk beside the run's output.

Each process has its own file, and holds it by flock for as long as it lives. A file without a holder was left by a
process that died or could not deliver. The next process takes it over, and ends its open runs as KILLED.
"""

import fcntl
import logging
import os
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from containers.contracts.digests import write_atomically
from tasks.mlflow_sync.undelivered import UndeliveredRun

logger = logging.getLogger(__name__)

PENDING_FOLDER = "mlflow_pending"
ENDED_TAG = "rlhf.ended"
_LOST = "its orchestrator died; a later run closed it"
_RUNS: TypeAdapter[list[UndeliveredRun]] = TypeAdapter(list[UndeliveredRun])


class StateFile:
    """The runs that this process has to end, and those that MLflow lacks a part of; without either, there is no file.

    A failure to write (a full disk) is logged, never raised.

    Args:
        folder: has the files of all processes; those of dead processes are taken over.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{time.time_ns() // 1_000_000}-{os.getpid()}-{uuid.uuid4().hex[:6]}.json"
        self._written = b""
        self._lock = _new_lock(self.path)
        self.taken_over = self._take_over()

    def write(self, runs: Iterable[UndeliveredRun]) -> None:
        """Keep these runs, if they differ from those in the file."""
        kept = [run for run in runs if run.is_open or any(run.parts())]
        content = _RUNS.dump_json(kept, exclude_defaults=True) if kept else b""
        if content == self._written:
            return
        try:
            if content:
                write_atomically(self.path, content.decode())
            else:
                self.path.unlink(missing_ok=True)
            self._written = content
        except OSError as error:
            logger.warning("%s cannot be written: %s", self.path, error)

    def sign_of_life(self) -> None:
        """Record that the process lives, so that a run that it leaves open ends at the right time."""
        with suppress(OSError):
            os.utime(self.path)

    def close(self) -> None:
        """Leave the runs to the next process."""
        _let_go(self._lock, self.path)
        self._lock = None
        with suppress(OSError):  # another process has a file there
            self.path.parent.rmdir()

    def _take_over(self) -> tuple[UndeliveredRun, ...]:
        found: list[UndeliveredRun] = []
        taken = []
        for path in sorted(self.path.parent.glob("*.lock")):
            theirs = path.with_suffix(".json")
            if theirs == self.path or (lock := _lock_of_the_dead(theirs)) is None:
                continue
            found += _left_behind(theirs)
            taken.append((theirs, lock))
        self.write(found)
        for theirs, lock in taken:
            with suppress(OSError):
                theirs.unlink(missing_ok=True)
            _let_go(lock, theirs)
        return tuple(found)


def _new_lock(path: Path) -> int | None:
    """Create and hold a lock beside that file; None if the folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.rename(path.with_suffix(".lock"))  # held before others can see it
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error)
        return None
    return descriptor


def _lock_of_the_dead(path: Path) -> int | None:
    """Take the lock beside that file; None if another process holds it."""
    try:
        descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _let_go(lock: int | None, path: Path) -> None:
    """Free a lock; delete its file if nothing waits."""
    if lock is None:
        return
    if not path.exists():
        path.with_suffix(".lock").unlink(missing_ok=True)
    os.close(lock)


def _left_behind(path: Path) -> list[UndeliveredRun]:
    """Return the runs that a dead process left; those that it had open end when it was last seen."""
    try:
        runs = _RUNS.validate_json(path.read_bytes())
        ended_at_ms = path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read, so MLflow will lack what it holds: %s", path, error)
        with suppress(OSError):
            path.rename(path.with_suffix(".unreadable"))
        return []
    for run in runs:
        if run.is_open:
            run.tags[ENDED_TAG] = _LOST
            run.close("KILLED", ended_at_ms)
    return runs
