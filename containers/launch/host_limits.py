"""Memory, CPUs and shared memory of this host, or of this process's control groups, whichever is less."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from containers.host.control_groups import group_cpus, group_memory

_ROOT = Path("/")
_SHM = "/dev/shm"  # noqa: S108 - the mount itself is what is measured


@dataclass(frozen=True)
class Memory:
    """Bytes in all, and bytes that a new program could take."""

    total_bytes: int
    available_bytes: int


def read_memory(*, root: Path = _ROOT) -> Memory:
    """Memory of the host, cut to what the control groups of this process allow.

    Args:
        root: of the file system in which the control groups are looked up.
    """
    host, group = read_machine_memory(), group_memory(root=root)
    if group is None:
        return host
    return Memory(
        total_bytes=min(host.total_bytes, group.limit_bytes),
        available_bytes=min(host.available_bytes, group.available_bytes),
    )


def read_machine_memory() -> Memory:
    """Memory of the whole host, whatever this process may take of it."""
    host = psutil.virtual_memory()
    return Memory(total_bytes=host.total, available_bytes=host.available)


def available_cpus(*, root: Path = _ROOT) -> float:
    """CPUs by affinity, cut to the quota of the control groups: 1.5 means one and a half."""
    count, quota = float(len(os.sched_getaffinity(0))), group_cpus(root=root)
    return count if quota is None else min(count, quota)


def usable_cores() -> int:
    """Whole cores that this process may use, at least one; two threads of one core count once."""
    cpus = available_cpus()
    return max(1, int(min(cpus, psutil.cpu_count(logical=False) or cpus)))


def shared_memory() -> tuple[int, int]:
    """Size and free bytes of the host's /dev/shm; zeros where it is not mounted."""
    try:
        stats = os.statvfs(_SHM)
    except OSError:
        return 0, 0
    return stats.f_frsize * stats.f_blocks, stats.f_frsize * stats.f_bavail
