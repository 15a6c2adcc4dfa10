"""The lock of a stage key, which a container's label names: while a process holds it, the work has a live owner.

It is a kernel lock (flock) of the process that works on the key, and ends with that process. So it is more reliable
than the label of the process that started the container: another run may have taken the container over since.
"""

import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from containers.contracts.base import Frozen

logger = logging.getLogger(__name__)

LOCK_LABEL = "rlhf.lock"


class Holder(Frozen):
    """The holder of a lock, in a file beside it; shown to runs that wait or are refused."""

    holder: str = Field(min_length=1, description="Run name and id")
    pid: int
    host: str
    since: str

    @classmethod
    def of_this_process(cls, holder: str, **further: Any) -> Self:
        """The record of this process, with the fields of a subclass."""
        since = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(holder=holder, pid=os.getpid(), host=socket.gethostname(), since=since, **further)

    def __str__(self) -> str:
        return f"Run {self.holder} (process {self.pid} on {self.host}, since {self.since})"


@contextmanager
def taken_if_free(lock: Path | None) -> Iterator[bool]:
    """Hold the lock during the block if it is free; yields whether it was.

    Other processes that want to work on the key wait meanwhile, so the block cannot hit live work. A lock whose file
    is gone is free; one that this user may not open counts as held.

    Args:
        lock: the lock's file, which is never created here; None counts as free.
    """
    descriptor = None
    try:
        descriptor = None if lock is None else os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = True
    except (FileNotFoundError, NotADirectoryError):
        is_free = True
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            logger.warning("%s cannot be tried, so it counts as held: %s", lock, error)
        is_free = False
    try:
        yield is_free
    finally:
        if descriptor is not None:
            os.close(descriptor)
