"""Find the processes of a stage's attempt by a token in their environment; their parents can change.

The supervisor leaves none alive (`containers/harness/supervisor.py`). This module verifies that, and kills the rest
where the supervisor itself was killed and had no PID namespace.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from containers.contracts.names import TOKEN_VARIABLE
from containers.launch.base import CreateRefusedError

logger = logging.getLogger(__name__)

_ASK_EVERY_S = 0.2
# Added to the time that a program may take to stop, before a message about processes that cannot be seen.
_UNSEEN_AFTER_S = 10.0


def new_token(work_folder: Path) -> str:
    """Make a token that no other attempt has; all attempts in this work folder share its first half."""
    return f"{folder_token(work_folder)}-{secrets.token_hex(8)}"


def folder_token(work_folder: Path) -> str:
    """The beginning of the tokens of all attempts in this work folder."""
    return hashlib.sha256(str(work_folder.resolve()).encode()).hexdigest()[:24]


def processes_with(token: str) -> list[int]:
    """Ids of the processes whose token begins with `token`; without those of other users, which cannot be read."""
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if any(entry.startswith(wanted) for entry in path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


def kill_processes_with(token: str, *, limit_s: float = 5.0) -> list[int]:
    """Send SIGKILL to every process with the token. Returns those that are still alive after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while (alive := processes_with(token)) and time.monotonic() < deadline:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return alive


@contextmanager
def sole_program(
    work_folder: Path, *, limit_s: Callable[[], float], should_stop: Callable[[], bool], say: Callable[[str], None]
) -> Iterator[int | None]:
    """Lock the work folder for one program, and wait for the program of an orchestrator that died before it.

    The caller passes the lock's descriptor to its supervisor, so the lock is held until both have closed it or are
    dead. A program that does not stop within its time is killed.

    Args:
        limit_s: seconds that a stopping program may take.
        say: gets one line where there is such a program.

    Yields:
        The descriptor of the lock; None where `should_stop` returned True meanwhile.

    Raises:
        CreateRefusedError: the lock is a link, or this user may not open it.
    """
    path = _lock_path(work_folder)
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        what = "it is a link" if path.is_symlink() else error.strerror or str(error)
        raise CreateRefusedError(
            f"The lock {path} cannot be opened: {what}. It only tells whether a program works in the folder "
            "beside it: if no run is active, delete it."
        ) from error
    try:
        yield lock if _locked(lock, work_folder, limit_s=limit_s, should_stop=should_stop, say=say) else None
    finally:
        os.close(lock)


def _locked(
    lock: int,
    work_folder: Path,
    *,
    limit_s: Callable[[], float],
    should_stop: Callable[[], bool],
    say: Callable[[str], None],
) -> bool:
    deadline: float | None = None
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if should_stop():
                return False
            if deadline is None:
                limit = limit_s()
                deadline = time.monotonic() + limit
                say(f"The program of a dead run is saving its state; it has {limit:.0f} s, then this one starts.")
            elif time.monotonic() > deadline:
                left = kill_processes_with(folder_token(work_folder))
                if not told and time.monotonic() > deadline + _UNSEEN_AFTER_S:
                    told = True
                    who = (
                        f"processes {left}, which do not die from SIGKILL"
                        if left
                        else "a process that cannot be seen here"
                    )
                    say(
                        f"{_lock_path(work_folder)} is still held by {who}: on another machine, in another container, "
                        "or of another user. This run waits until it ends; stop it where it runs."
                    )
            time.sleep(_ASK_EVERY_S)
        else:
            # The supervisor is dead, so only this ends the processes that it left.
            if left := kill_processes_with(folder_token(work_folder)):
                logger.warning("Processes %s of an earlier attempt do not die from SIGKILL.", left)
            return True


def _lock_path(work_folder: Path) -> Path:
    return work_folder.with_name(f"{work_folder.name}.program.lock")
