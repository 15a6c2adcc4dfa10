"""One worker per stage key, across runs and processes of this machine.

The lock is the kernel's (flock): it is free the moment that its holder dies, so it needs no expiry. A file beside it
says who holds it. On a network file system it holds as far as that passes flock on (NFSv4 and Lustre with `flock` do).
"""

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from containers.digests import write_atomically

_ASK_EVERY_S = 1.0


class WaitCancelledError(Exception):
    """The run was cancelled while it waited for another."""


def lock_path(work_folder: Path) -> Path:
    """Where the lock of a work folder lies."""
    return work_folder.with_name(f"{work_folder.name}.lock")


@contextmanager
def sole_worker(
    work_folder: Path,
    *,
    holder: str,
    say: Callable[[str], None],
    should_stop: Callable[[], bool],
    others_do: str = "is at the same work",
) -> Iterator[None]:
    """Hold the work folder of a stage key for the time of the block; wait for whoever holds it now.

    Args:
        holder: who this is, for those who wait: run name and id.
        say: gets one line where another holds it.
        others_do: what the other does that this one waits for.

    Raises:
        WaitCancelledError: `should_stop` said so while another held it.
    """
    work_folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_path(work_folder))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{_who_holds(work_folder)} {others_do}; waiting for it.")
        _wait(lock, should_stop)
    try:
        _write_holder(work_folder, holder)
        yield
    finally:
        lock.release()


def _wait(lock: FileLock, should_stop: Callable[[], bool]) -> None:
    while True:
        try:
            lock.acquire(timeout=_ASK_EVERY_S, poll_interval=0.1)
        except Timeout:
            if should_stop():
                raise WaitCancelledError("It was cancelled while it waited for another run.") from None
        else:
            return


def _holder_path(work_folder: Path) -> Path:
    return work_folder.with_name(f"{work_folder.name}.holder.json")


def _write_holder(work_folder: Path, holder: str) -> None:
    facts = {
        "holder": holder,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_atomically(_holder_path(work_folder), json.dumps(facts))


def _who_holds(work_folder: Path) -> str:
    try:
        facts = json.loads(_holder_path(work_folder).read_text(encoding="utf-8"))
        return f"Run {facts['holder']} (process {facts['pid']} on {facts['host']}, since {facts['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "Another run"
