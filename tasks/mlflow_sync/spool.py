"""Operations that wait for MLflow, and the open runs, on disk beside the run's output.

Each process has its own file, and holds it by flock for as long as it lives. A file without a holder was left by a
process that died or could not deliver. The next process takes it over, and ends its open runs as KILLED.
"""

import fcntl
import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from containers.contracts.base import Frozen
from containers.contracts.digests import write_atomically
from tasks.mlflow_sync.operations import CreateRun, EndRun, RunOperation, SetTags

logger = logging.getLogger(__name__)

SPOOL_FOLDER = "mlflow_pending"
ENDED_TAG = "rlhf.ended"
_LOST = "its orchestrator died; a later run closed it"


class OpenRun(Frozen):
    """A run that the process has open: it ends as KILLED if the process dies."""

    kind: Literal["open_run"] = "open_run"
    run: str


_Line = CreateRun | RunOperation | OpenRun
_LINE: TypeAdapter[_Line] = TypeAdapter(Annotated[_Line, Field(discriminator="kind")])


class Spool:
    """The waiting operations and the open runs of one process; without either, there is no file.

    A failure to write (a full disk) is logged, never raised.

    Args:
        folder: has the files of all processes; those of dead processes are taken over.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{time.time_ns() // 1_000_000}-{os.getpid()}-{uuid.uuid4().hex[:6]}.jsonl"
        self._open: list[str] = []
        self._operations: list[CreateRun | RunOperation] = []
        self._lock = _new_lock(self.path)
        self._take_over()

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def operations(self) -> tuple[CreateRun | RunOperation, ...]:
        """The operations that wait, oldest first."""
        return tuple(self._operations)

    def append(self, operation: CreateRun | RunOperation) -> None:
        """Keep one more operation."""
        self._operations.append(operation)
        self._append_line(operation)

    def replace(self, operations: Iterable[CreateRun | RunOperation]) -> None:
        """Keep only these operations."""
        self._operations = list(operations)
        self._rewrite()

    def run_opened(self, run: str) -> None:
        """Remember that this process has to end the run."""
        self._open.append(run)
        self._append_line(OpenRun(run=run))

    def run_ended(self, run: str) -> None:
        """Forget the run: MLflow knows its end, or refused it."""
        if run in self._open:
            self._open.remove(run)
            self._rewrite()

    def sign_of_life(self) -> None:
        """Record that the process lives, so that a run that it leaves open ends at the right time."""
        with suppress(OSError):
            os.utime(self.path)

    def close(self) -> None:
        """Leave the waiting operations to the next process."""
        _let_go(self._lock, self.path)
        self._lock = None
        with suppress(OSError):  # another process has a file there
            self.path.parent.rmdir()

    def _take_over(self) -> None:
        taken = []
        for path in sorted(self.path.parent.glob("*.lock")):
            theirs = path.with_suffix(".jsonl")
            if theirs == self.path or (lock := _lock_of_the_dead(theirs)) is None:
                continue
            self._operations += _left_behind(_read(theirs), ended_at_ms=_changed_at_ms(theirs))
            taken.append((theirs, lock))
        if taken:
            self._rewrite()
        for theirs, lock in taken:
            with suppress(OSError):
                theirs.unlink(missing_ok=True)
            _let_go(lock, theirs)

    def _append_line(self, line: _Line) -> None:
        try:
            with open(self.path, "a", encoding="utf-8") as stream:
                stream.write(line.model_dump_json() + "\n")
        except OSError as error:
            logger.warning("%s cannot be written: %s", self.path, error)

    def _rewrite(self) -> None:
        lines: Sequence[_Line] = [*(OpenRun(run=run) for run in self._open), *self._operations]
        try:
            if lines:
                write_atomically(self.path, "".join(f"{line.model_dump_json()}\n" for line in lines))
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self.path, error)


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


def _left_behind(lines: Iterable[_Line], *, ended_at_ms: int) -> Iterator[CreateRun | RunOperation]:
    """Yield the operations that a dead process left, and the ends of its open runs."""
    opened: list[str] = []
    for line in lines:
        if isinstance(line, (OpenRun, CreateRun)):
            opened.append(line.run)
        elif isinstance(line, EndRun) and line.run in opened:
            opened.remove(line.run)
        if not isinstance(line, OpenRun):
            yield line
    for run in reversed(opened):  # children before their parent
        yield SetTags(run=run, tags=((ENDED_TAG, _LOST),))
        yield EndRun(run=run, status="KILLED", end_time_ms=ended_at_ms)


def _changed_at_ms(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except OSError:
        return time.time_ns() // 1_000_000


def _read(path: Path) -> Iterator[_Line]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("%s cannot be read: %s", path, error)
        return
    for number, line in enumerate(lines, start=1):
        try:
            yield _LINE.validate_json(line)
        except ValueError as error:
            logger.warning("%s:%d is no operation and was left out: %s", path, number, error)
