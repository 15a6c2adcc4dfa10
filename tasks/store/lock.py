"""One worker per stage key, across runs and processes of this machine.

The kernel frees the lock (flock) the moment that its holder dies, so it needs no expiry. A file beside it names the
holder. On a network file system it works if that passes flock on (NFSv4 and Lustre with `flock` do).

Exception
├── LockError            the lock's path is not a file that can be locked
└── WaitCancelledError   a run was cancelled while it waited for another
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from containers.contracts.digests import write_atomically
from containers.launch.lease import Holder

_ASK_EVERY_S = 1.0


class LockError(Exception):
    """The lock's path is not a file that this user may lock. It is never followed or replaced."""


class WaitCancelledError(Exception):
    """The run was cancelled while it waited for another."""


class LockHolder(Holder):
    """The holder of a stage's key or of a run's folder; `flow_run_id` is empty outside a flow run of Prefect."""

    flow_run_id: str = ""


def lock_path(work_folder: Path) -> Path:
    """Path of a work folder's lock."""
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
    """Wait for the work folder of a stage key, and hold it during the block.

    Args:
        holder: run name and id, shown to runs that wait.
        say: gets one line if another run holds it.
        others_do: what the other run does, for that line.

    Raises:
        WaitCancelledError: `should_stop` returned True during the wait.
        LockError: the lock's path is not a lock.
    """
    work_folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_path(work_folder))
    if not taken(lock):
        say(f"{read_holder(work_folder) or 'Another run'} {others_do}; waiting for it.")
        wait_for(lock, should_stop)
    try:
        write_holder(work_folder, holder)
        yield
    finally:
        lock.release()


def taken(lock: FileLock, *, within_s: float = 0.0) -> bool:
    """Try to take the lock for `within_s`. Return whether that succeeded.

    Raises:
        LockError: its path is a link, a folder, or a file that this user may not open.
    """
    try:
        lock.acquire(timeout=within_s, poll_interval=0.1)
    except Timeout:
        return False
    except OSError as error:
        raise LockError(_why_no_lock(Path(lock.lock_file), error)) from error
    return True


def wait_for(lock: FileLock, should_stop: Callable[[], bool]) -> None:
    """Wait until the lock is free, and take it.

    Raises:
        WaitCancelledError: `should_stop` returned True meanwhile.
        LockError: as `taken`.
    """
    while not taken(lock, within_s=_ASK_EVERY_S):
        if should_stop():
            raise WaitCancelledError("The run was cancelled while it waited for another run.")


def write_holder(work_folder: Path, holder: str, *, flow_run_id: str = "") -> None:
    """Record this process as holder of the folder's lock. Call it only while holding the lock."""
    facts = LockHolder.of_this_process(holder, flow_run_id=flow_run_id)
    write_atomically(_holder_path(work_folder), facts.model_dump_json())


def read_holder(work_folder: Path) -> LockHolder | None:
    """Return the last holder of the folder's lock; None if that cannot be read."""
    return LockHolder.read_if_valid(_holder_path(work_folder))


def _why_no_lock(path: Path, error: OSError) -> str:
    if path.is_symlink():
        return (
            f"The lock {path} is a link to {path.readlink()}. A lock is a plain file, and links are not followed: "
            "nothing was locked or written. Remove the link; the lock is made again, and no work is lost."
        )
    if path.is_dir():
        return f"The lock {path} is a folder, but must be a file. Remove the folder; the lock is made again."
    return (
        f"The lock {path} cannot be taken: {error.strerror or error}. Let this user read and write it, or use another "
        "folder."
    )


def _holder_path(work_folder: Path) -> Path:
    return work_folder.with_name(f"{work_folder.name}.holder.json")
