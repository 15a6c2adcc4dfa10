"""The processes of a stage, found by the token in their environment, and what the kernel says of them."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from containers.launch.leftovers import folder_token, processes_with


def alive(tmp_path: Path) -> list[int]:
    """Processes of the stage whose work folder lies there, wherever they are in the tree of processes."""
    return processes_with(folder_token(tmp_path / "work"))


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
