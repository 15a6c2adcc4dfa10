"""Read the kernel's limits of this process: those of its control group and of every group above it.

A systemd scope, a step of Slurm, a pod and a container are control groups. Files at the top of the mount do not show
their limits, so the process's group is read from /proc. Versions 1 and 2, and both at once. Standard library only;
used on both sides of the container boundary.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
_VERSION_2 = ""
# Version 1 means "no limit" by the largest number of whole pages.
_NO_LIMIT_BYTES = 2**60


@dataclass(frozen=True)
class Memory:
    """Bytes in total, and bytes that a new program could take."""

    total_bytes: int
    available_bytes: int


def group_memory(*, root: Path = _ROOT) -> Memory | None:
    """The smallest limit of all control groups and the free memory of the fullest; None where none has a limit.

    File pages that the kernel can drop at once count as free.
    `memory.high` counts as a limit: beyond it the kernel kills no process, but slows the group down extremely.

    Args:
        root: of the file system with /proc and the mounts.
    """
    levels = [
        *(_memory_2(folder) for folder in _groups(root, _VERSION_2)),
        *(_memory_1(folder) for folder in _groups(root, "memory")),
    ]
    found = [level for level in levels if level is not None]
    if not found:
        return None
    return Memory(min(level.total_bytes for level in found), min(level.available_bytes for level in found))


def group_cpus(*, root: Path = _ROOT) -> float | None:
    """CPUs of the smallest quota of all groups, 1.5 for one and a half; None without a quota."""
    quotas = [
        *(_quota_2(folder) for folder in _groups(root, _VERSION_2)),
        *(_quota_1(folder) for folder in _groups(root, "cpu")),
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


def available_cpus(*, root: Path = _ROOT) -> float:
    """CPUs by affinity, or the quota of the control groups where that is less: 1.5 means one and a half."""
    count, quota = float(len(os.sched_getaffinity(0))), group_cpus(root=root)
    return count if quota is None else min(count, quota)


def oom_kills(*, root: Path = _ROOT) -> int:
    """Number of OOM kills in this process's group; 0 where the kernel does not report it.

    In version 2 the top group of a machine has no such counter: there the count is of all groups, since boot.
    """
    counters = [
        *(folder / "memory.events" for folder in _groups(root, _VERSION_2)),
        *(folder / "memory.oom_control" for folder in _groups(root, "memory")),
        root / "proc/vmstat",
    ]
    return next((count for path in counters if (count := _pairs(path).get("oom_kill")) is not None), 0)


def _memory_2(folder: Path) -> Memory | None:
    limits = [_integer(folder / name) for name in ("memory.max", "memory.high")]
    return _left(limits, _integer(folder / "memory.current"), _pairs(folder / "memory.stat").get("inactive_file"))


def _memory_1(folder: Path) -> Memory | None:
    stat = _pairs(folder / "memory.stat")
    # The second is the kernel's own minimum over all groups above, including those outside the mount.
    limits = [_integer(folder / "memory.limit_in_bytes"), stat.get("hierarchical_memory_limit")]
    return _left(limits, _integer(folder / "memory.usage_in_bytes"), stat.get("total_inactive_file"))


def _left(limits: list[int | None], usage: int | None, reclaimable: int | None) -> Memory | None:
    limit = min((value for value in limits if value is not None), default=_NO_LIMIT_BYTES)
    if limit >= _NO_LIMIT_BYTES:
        return None
    taken = max(0, (usage or 0) - (reclaimable or 0))
    return Memory(limit, max(0, limit - taken))


def _quota_2(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _quota_1(folder: Path) -> float | None:
    quota, period = _integer(folder / "cpu.cfs_quota_us"), _integer(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and of each group above it that the mount shows.

    Args:
        controller: of version 1; empty: the hierarchy of version 2.
    """
    mounts = tuple(_mounts(root, controller))
    own = _own_path(root, controller)
    if own is None or not mounts:
        return
    # A container may have several mounts of a hierarchy, or one without its own group: then the mount's top counts.
    folders = [(point, point / below) for group, point in mounts if (below := _below(own, group)) is not None]
    top, folder = next((found for found in folders if found[1].is_dir()), (mounts[0][1], mounts[0][1]))
    while folder != top:
        yield folder
        folder = folder.parent
    yield top


def _own_path(root: Path, controller: str) -> str | None:
    """The group in /proc/self/cgroup, as a path in its hierarchy; None where the kernel has no such hierarchy."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path.removesuffix(" (deleted)")
    return None


def _mounts(root: Path, controller: str) -> Iterator[tuple[str, Path]]:
    """Yield the mounts of that hierarchy, from /proc/self/mountinfo (proc(5)): the mounted group, and the folder."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount, _, kind = line.partition(" - ")
        fields, kinds = mount.split(" "), kind.split(" ")
        if len(fields) < 5 or len(kinds) < 3:
            continue
        is_wanted = controller in kinds[2].split(",") if controller else True
        if kinds[0] == ("cgroup" if controller else "cgroup2") and is_wanted:
            yield _unescaped(fields[3]), root / _unescaped(fields[4]).lstrip("/")


def _below(path: str, mounted: str) -> str | None:
    """The group's path below the mounted group; None where it is not below it.

    Without its own namespace, a container sees the host's paths in both; with one, both begin at the container.
    """
    mounted = mounted.rstrip("/")
    if ".." in path.split("/") or (path != mounted and not path.startswith(f"{mounted}/")):
        return None
    return path.removeprefix(mounted).lstrip("/")


def _unescaped(text: str) -> str:
    """Decode a path of mountinfo, in which a blank is `\\040`."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)


def _pairs(path: Path) -> dict[str, int]:
    """Names and numbers of a file with one pair per line."""
    pairs = (line.split() for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _integer(path: Path) -> int | None:
    """The file's number; None for `max`, and where there is no such file."""
    try:
        return int(_text(path))
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return ""
