"""One live run per output folder: a second one would overwrite its report and links, and is refused.

The kernel keeps the lock (flock), as for a stage key: it is free as soon as its holder ends or dies. So a rerun after a
crash starts at once, and a suspended run holds nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from tasks.store.lock import lock_path, read_holder, taken, wait_for, write_holder

# `.run.lock` in the folder, and `.run.holder.json` beside it.
_LOCKED = ".run"
# A process that only checks whether the lock is free holds it for a moment.
_TAKEN_WITHIN_S = 1.0


class RunFolderHeldError(Exception):
    """Another live run works in the folder; the message says which, since when, and what to do."""


@contextmanager
def sole_run(
    output_dir: Path, *, name: str, run_id: str, flow_run_id: str, should_stop: Callable[[], bool]
) -> Iterator[None]:
    """Hold the output folder for the time of the block.

    Prefect may restart a flow run while its earlier process is still ending: the new process waits for that one.

    Args:
        flow_run_id: the present flow run in Prefect; empty outside one.

    Raises:
        RunFolderHeldError: another run holds it.
        WaitCancelledError: `should_stop` said so during that wait.
        LockError: the path of the lock holds something else.
    """
    locked = output_dir / _LOCKED
    lock = FileLock(lock_path(locked))
    if not taken(lock, within_s=_TAKEN_WITHIN_S):
        holder = read_holder(locked)
        if holder is None or not flow_run_id or holder.flow_run_id != flow_run_id:
            raise RunFolderHeldError(_held_text(output_dir))
        wait_for(lock, should_stop)
    try:
        write_holder(locked, f"{name} ({run_id})", flow_run_id=flow_run_id)
        yield
    finally:
        lock.release()


def refuse_held_folder(output_dir: Path) -> None:
    """Refuse a run before anything is started for it; `sole_run` checks again.

    Raises:
        RunFolderHeldError: another run holds the folder.
        LockError: the path of the lock holds something else.
    """
    path = lock_path(output_dir / _LOCKED)
    if not path.exists() and not path.is_symlink():
        return
    lock = FileLock(path)
    if not taken(lock, within_s=_TAKEN_WITHIN_S):
        raise RunFolderHeldError(_held_text(output_dir))
    lock.release()


def _held_text(output_dir: Path) -> str:
    holder = read_holder(output_dir / _LOCKED)
    return (
        f"{holder or 'Another run'} is at work in {output_dir}. Two runs there at once would overwrite each other's "
        "report and links, so this one does not start; nothing was spent. Wait until that run has ended, or cancel it; "
        "or give this one its own name: --set run.name=…, in a form `save_as`. Stages that both need are "
        "still made only once."
    )
