"""The processes of a stage, found by the token in their environment, and what the kernel says of them."""

import contextlib
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from containers.contracts.names import TOKEN_VARIABLE
from containers.launch.leftovers import folder_token, processes_with


def alive(tmp_path: Path) -> list[int]:
    """Processes of the stage whose work folder lies there, wherever they are in the tree of processes."""
    return processes_with(folder_token(tmp_path / "work"))


@contextlib.contextmanager
def left_with_token(token: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that a stage left, once its environment can be read; killed at the end.

    For a moment after `Popen` returns, the kernel shows the environment of the new program empty.
    """
    command = ["/bin/sh", "-c", "echo started; read line"]
    with subprocess.Popen(
        command, env={TOKEN_VARIABLE: token}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"started\n"
            yield process
        finally:
            process.kill()


def command_of(pid: int) -> str:
    return read(pid, "cmdline").replace(b"\0", b" ").decode()


def rank_of(pid: int) -> bool:
    return b"LOCAL_RANK=" in read(pid, "environ")


def read(pid: int, name: str) -> bytes:
    """Empty where the process has ended meanwhile."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def namespaces_of(pids: Iterable[int]) -> set[str]:
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/pid"))
    return found
