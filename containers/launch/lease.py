"""The lock of a stage key, seen from a container's label: while somebody holds it, the work has a live owner.

The lock is the kernel's (flock), taken by whoever works on the key. It lives and dies with that process, so it says
more than the process that once started the container: another may have taken the container over since.
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
    """Hold the lock for the time of the block if nobody holds it; True where nobody does.

    Whoever wants to work on the key meanwhile waits, so what is done in the block cannot hit live work. A lock whose
    file is gone is free; one that this user may not open counts as held.

    Args:
        lock: the lock's file, which is never made here; None counts as free.
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
