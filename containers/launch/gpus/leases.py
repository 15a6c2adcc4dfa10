"""Leases of GPUs, one per UUID: on one machine no two stages of this project have the same GPU.

A lease is a kernel lock (flock) on a file: it ends with its holder, however that dies, so none is left behind. A
file beside it names the holder, with a heartbeat. A live holder without a heartbeat keeps its lease, since its stage
may still compute; a waiting run shows a message. A program of the process runtime also locks its GPUs itself, since
it may outlive the run that leased them: after a run was killed, its stage still saves its state.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from containers.contracts.digests import write_atomically
from containers.launch.lease import Holder, taken_if_free
from containers.launch.leftovers import processes_with

FOLDER_VARIABLE = "RLHF_GPU_LEASES"
QUEUE = "queue"
HEARTBEAT_S = 10.0
# A holder without a heartbeat for so long hangs or was stopped.
SILENT_AFTER_S = 90.0
# Several users may share the folder: each must be able to lock the files of the others.
_SHARED_MODE = 0o666


class GpuHolder(Holder):
    """The run that holds a lease; `beat` is the time of its last heartbeat, in seconds since the epoch."""

    beat: float

    def __str__(self) -> str:
        text = super().__str__()
        if time.time() - self.beat > SILENT_AFTER_S:
            last = datetime.fromtimestamp(self.beat, UTC).isoformat(timespec="seconds")
            text += f", without a sign of life since {last}: look at process {self.pid}, it may hang,"
        return text


def lease_folder() -> Path:
    """Folder of the leases: the one that RLHF_GPU_LEASES names, else one for all runs of this user."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / f"rlhf-flows-{os.getuid()}"


def open_lease_folder() -> Path:
    """Make the folder of the leases and its queue's lock, which other users of the folder may take too."""
    folder = lease_folder()
    folder.mkdir(parents=True, exist_ok=True)
    queue = _lock_path(folder, QUEUE)
    queue.touch()
    with contextlib.suppress(PermissionError):  # its owner has done so
        queue.chmod(_SHARED_MODE)
    return folder


def leased_gpus(uuids: Iterable[str], *, folder: Path) -> dict[str, str]:
    """GPU UUID → its holder, as text; free GPUs are left out."""
    held = {}
    for uuid in uuids:
        with taken_if_free(_lock_path(folder, uuid)) as is_free:
            if not (is_free and _has_no_program(uuid, folder)):
                held[uuid] = str(GpuHolder.read_if_valid(_holder_path(folder, uuid)) or "Another run")
    return held


@contextmanager
def leased(uuids: Iterable[str], *, count: int, holder: str, folder: Path) -> Iterator[tuple[str, ...] | None]:
    """Hold the leases of the first `count` free GPUs and yield their UUIDs; yield None, without leases, if too few.

    Args:
        uuids: in the order of preference.
        holder: name of this run, for the messages of waiting runs.
    """
    with contextlib.ExitStack() as stack:
        taken: list[str] = []
        for uuid in uuids:
            if len(taken) == count:
                break
            lock = FileLock(_lock_path(folder, uuid), mode=_SHARED_MODE)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            if not _has_no_program(uuid, folder):
                lock.release()
                continue
            stack.callback(lock.release)
            taken.append(uuid)
        if len(taken) < count:
            stack.close()
            yield None
            return
        stack.enter_context(_heartbeat(taken, holder=holder, folder=folder))
        yield tuple(taken)


@contextmanager
def program_locks(uuids: Iterable[str], *, folder: Path, token: str) -> Iterator[tuple[int, ...]]:
    """Hold a program's locks on GPUs that its run has leased; no other run gets these until the program is dead.

    Args:
        token: in the environment of every process of the program (`leftovers.new_token`). It stays in the lock's file
            until no process has it: a process may outlive all holders of the lock.

    Yields:
        Descriptors for the program's supervisor to inherit.

    Raises:
        OSError: a lock cannot be opened, or is a link.
    """
    descriptors: list[int] = []
    try:
        for uuid in uuids:
            path = _program_lock_path(folder, uuid)
            descriptors.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _SHARED_MODE))
            with contextlib.suppress(PermissionError):  # another user owns it, and has done so
                os.fchmod(descriptors[-1], _SHARED_MODE)
            # Free, or held for a moment by a check: the lease was given only where no program had the GPU.
            fcntl.flock(descriptors[-1], fcntl.LOCK_EX)
            os.ftruncate(descriptors[-1], 0)
            os.pwrite(descriptors[-1], token.encode(), 0)
        yield tuple(descriptors)
    finally:
        is_dead = not processes_with(token)
        for descriptor in descriptors:
            if is_dead:
                os.ftruncate(descriptor, 0)
            os.close(descriptor)


def _has_no_program(uuid: str, folder: Path) -> bool:
    path, token = _program_lock_path(folder, uuid), ""
    with taken_if_free(path) as is_free:
        with contextlib.suppress(OSError):
            token = path.read_text(encoding="ascii", errors="replace").strip()
        return is_free and not (token and processes_with(token))


@contextmanager
def _heartbeat(uuids: Iterable[str], *, holder: str, folder: Path) -> Iterator[None]:
    facts = GpuHolder.of_this_process(holder, beat=time.time())
    paths = [_holder_path(folder, uuid) for uuid in uuids]
    over = threading.Event()

    def beat() -> None:
        while not over.wait(timeout=HEARTBEAT_S):
            _write_holders(paths, facts)

    _write_holders(paths, facts)
    thread = threading.Thread(target=beat, name="gpu-leases", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=HEARTBEAT_S)
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _write_holders(paths: Iterable[Path], facts: GpuHolder) -> None:
    """Write the record of the holder; the lock itself does not depend on it."""
    text = facts.model_copy(update={"beat": time.time()}).model_dump_json()
    for path in paths:
        with contextlib.suppress(OSError):
            write_atomically(path, text)
            path.chmod(_SHARED_MODE & ~stat.S_IWOTH)


def _lock_path(folder: Path, uuid: str) -> Path:
    return folder / f"{uuid}.lock"


def _program_lock_path(folder: Path, uuid: str) -> Path:
    return folder / f"{uuid}.program.lock"


def _holder_path(folder: Path, uuid: str) -> Path:
    return folder / f"{uuid}.holder.json"
