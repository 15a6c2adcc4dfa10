"""A group of processes whose memory the kernel limits, for faults that only the kernel can make."""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

_ROOT = Path("/sys/fs/cgroup")
_MIB = 1024**2


class MemoryCgroup:
    """One control group, of version 1 or 2.

    Args:
        folder: where the kernel shows it; made by `memory_cgroup`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        is_v2 = (folder / "memory.max").exists()
        self._limit, self._usage = (
            (folder / "memory.max", folder / "memory.current")
            if is_v2
            else (folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes")
        )

    @property
    def can_limit(self) -> bool:
        """Whether the kernel lets memory be limited here."""
        return self._limit.exists() and self._usage.exists()

    def add(self, process: subprocess.Popen[bytes]) -> None:
        """Take a process in; what it starts from now on is in it too."""
        (self._folder / "cgroup.procs").write_text(str(process.pid))

    def limit_mib(self, mib: int) -> None:
        """Allow that much in all."""
        self._limit.write_text(str(mib * _MIB))

    def leave_mib(self, mib: int) -> None:
        """Allow that much more than is used now."""
        swap = self._folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        self._limit.write_text(str(int(self._usage.read_text()) + mib * _MIB))

    def remove(self) -> None:
        """Kill what is in it, and take it away."""
        deadline = time.monotonic() + 30
        while pids := (self._folder / "cgroup.procs").read_text().split():
            assert time.monotonic() < deadline, f"{pids} do not die"
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)
        self._folder.rmdir()


@contextmanager
def memory_cgroup() -> Iterator[MemoryCgroup]:
    """A group of the test's own, which only root can make; the test is skipped where that is not allowed."""
    folder = _parent() / f"rlhf-faults-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"NO CGROUP: the kernel's limit cannot be set here ({error}); nothing was tested.")
    group = MemoryCgroup(folder)
    try:
        if not group.can_limit:
            pytest.skip("NO MEMORY CONTROLLER in this control group; nothing was tested.")
        yield group
    finally:
        group.remove()


def _parent() -> Path:
    if (_ROOT / "memory").is_dir():
        (own,) = (
            line.split(":", 2)[2]
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if line.split(":")[1] == "memory"
        )
        return _ROOT / "memory" / own.lstrip("/")
    return _ROOT


def kill_first(process: psutil.Process) -> None:
    """Have the kernel take this process before any other of its group; what it starts later inherits that."""
    Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
