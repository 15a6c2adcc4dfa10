"""Memory, CPUs and shared memory of this host, or of the cgroup that this process lives in, whichever is less."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_SHM = "/dev/shm"  # noqa: S108 - the mount itself is what is measured


@dataclass(frozen=True)
class Memory:
    """Bytes in all, and bytes that a new program could take."""

    total_bytes: int
    available_bytes: int


def read_memory(*, cgroup: Path = _CGROUP) -> Memory:
    """Memory of the host, cut to the limit of this cgroup (version 2 or 1)."""
    host = psutil.virtual_memory()
    for limit_file, usage_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, usage = _integer(cgroup / limit_file), _integer(cgroup / usage_file)
        if limit is not None and limit < host.total:
            # Pages of files count as usage and can be dropped, so this errs on the safe side.
            return Memory(total_bytes=limit, available_bytes=min(host.available, max(0, limit - (usage or 0))))
    return Memory(total_bytes=host.total, available_bytes=host.available)


def available_cpus(*, cgroup: Path = _CGROUP) -> float:
    """CPUs by affinity, cut to the cgroup's quota: 1.5 means one and a half."""
    count = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return count if quota == "max" else min(count, int(quota) / int(period))
    except (OSError, ValueError):
        pass
    quota_us = _integer(cgroup / "cpu" / "cpu.cfs_quota_us")
    period_us = _integer(cgroup / "cpu" / "cpu.cfs_period_us")
    return min(count, quota_us / period_us) if quota_us and quota_us > 0 and period_us else count


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


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
