"""The lock of a stage key, which a container's label names: while a process holds it, the work has a live owner.

It is a kernel lock (flock) of the process that works on the key, and ends with that process. So it is more reliable
than the label of the process that started the container: another run may have taken the container over since.
"""

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

LOCK_LABEL = "rlhf.lock"


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
