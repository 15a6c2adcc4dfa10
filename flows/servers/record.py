"""`servers.json`: which servers run for a state folder, and which processes use them. Read and written under a lock.

The lock is `flock`: the kernel frees it when its holder dies. The record lists the users, so that the servers end with
the last of several pipelines, and servers that a killed orchestrator left end with the next one.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from containers.contracts.base import Frozen
from containers.contracts.digests import write_atomically
from flows.servers.process import LOOPBACK, ServerError, is_same_process

RECORD_FILE = "servers.json"
_LOCK_FILE = "servers.lock"
_SAY_EVERY_S = 15.0


class ServerEntry(Frozen):
    """A server that was started for this folder; holds no secret.

    Attributes:
        host: the interface that it listens on.
        database: where its rows are, without user and password.
        wants_login: whether it demands user and password.
        has_own_login: whether those are the ones that were made for this folder.
    """

    name: str
    pid: int
    created: float
    port: int
    log_path: str
    host: str = LOOPBACK
    database: str = ""
    wants_login: bool = False
    has_own_login: bool = False

    @property
    def url(self) -> str:
        """Its address for this machine."""
        return server_url(self.host, self.port)

    @property
    def lives(self) -> bool:
        """Whether its process is still the one that was started."""
        return is_same_process(self.pid, self.created)


def server_url(host: str, port: int) -> str:
    """The address, for this machine, of a server that listens on that interface."""
    host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)  # noqa: S104 - looked up, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class UserEntry(Frozen):
    """A process that needs the servers; `token` distinguishes two uses by one process."""

    token: str
    pid: int
    created: float

    @property
    def lives(self) -> bool:
        """Whether the process still runs."""
        return is_same_process(self.pid, self.created)


class ServersRecord(Frozen):
    """Content of `servers.json`."""

    servers: tuple[ServerEntry, ...] = ()
    users: tuple[UserEntry, ...] = ()


def read_record(state_dir: Path) -> ServersRecord:
    """What runs for this folder; empty if there is no record or it cannot be read."""
    try:
        return ServersRecord.model_validate_json((state_dir / RECORD_FILE).read_bytes())
    except (OSError, ValueError):
        return ServersRecord()


def write_record(state_dir: Path, record: ServersRecord) -> None:
    """Replace the record; an empty one is removed."""
    if record.servers:
        write_atomically(state_dir / RECORD_FILE, record.model_dump_json(indent=1))
    else:
        (state_dir / RECORD_FILE).unlink(missing_ok=True)


@contextmanager
def locked(state_dir: Path, *, say: Callable[[str], None], limit_s: float) -> Iterator[None]:
    """Hold the folder's lock; a process that starts servers holds it until they are healthy.

    The kernel frees the lock of a process that died, so its holder lives.

    Raises:
        ServerError: another process held it for `limit_s`.
    """
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = state_dir / _LOCK_FILE
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ServerError(
            f"The lock {lock} cannot be taken: {error.strerror}. A lock is a plain file: if a link or a folder is in "
            "its place, remove that."
        ) from error
    try:
        _take(descriptor, state_dir, say, limit_s)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, state_dir: Path, say: Callable[[str], None], limit_s: float) -> None:
    began = time.monotonic()
    say_at_s = 0.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            waited_s = time.monotonic() - began
            if waited_s > limit_s:
                raise ServerError(
                    f"{state_dir / _LOCK_FILE} is held by another rlhf process that has been starting or stopping "
                    f"servers for {waited_s:.0f} s. End that process, or use another output folder."
                ) from error
        if waited_s >= say_at_s:
            since = f" since {waited_s:.0f} s" if say_at_s else ""
            say(f"Another rlhf process is starting or stopping the servers; waiting for it{since}.")
            say_at_s = waited_s + _SAY_EVERY_S
        time.sleep(0.2)
