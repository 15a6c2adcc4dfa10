"""What a cgroup allows counts, and not what the host has: a stage in a small container dies of the difference."""

import os
from pathlib import Path

import psutil
import pytest

from containers.contracts.hardware import GIB
from containers.host.control_groups import available_cpus
from containers.launch import host_limits
from containers.launch.host_limits import read_memory, shared_memory, usable_cores


def host_in_a_group(root: Path, *, limit: str, usage: int, cpus: str) -> Path:
    """A file system as a process of version 2 sees it in its own group."""
    group = root / "sys/fs/cgroup/job"
    for path, text in (
        (root / "proc/self/cgroup", "0::/job\n"),
        (root / "proc/self/mountinfo", "25 30 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
        (group / "memory.max", limit),
        (group / "memory.current", str(usage)),
        (group / "cpu.max", cpus),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_limits_of_a_control_group_count(tmp_path: Path) -> None:
    small = host_in_a_group(tmp_path, limit=f"{GIB}\n", usage=GIB // 4, cpus="50000 100000\n")
    memory = read_memory(root=small)
    assert memory.total_bytes == GIB
    assert memory.available_bytes <= GIB - GIB // 4
    assert available_cpus(root=small) == 0.5


def test_what_no_control_group_limits_is_the_hosts(tmp_path: Path) -> None:
    free = host_in_a_group(tmp_path, limit="max\n", usage=GIB // 4, cpus="max 100000\n")
    assert read_memory(root=free).total_bytes == read_memory(root=tmp_path / "no groups").total_bytes
    assert available_cpus(root=free) == len(os.sched_getaffinity(0))


def test_a_group_may_allow_more_than_the_host_has(tmp_path: Path) -> None:
    vast = host_in_a_group(tmp_path, limit=str(2**50), usage=0, cpus=f"{2**40} 100000\n")
    assert read_memory(root=vast).total_bytes == psutil.virtual_memory().total
    assert available_cpus(root=vast) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("cpus", "cores", "usable"), [(16.0, 8, 8), (4.0, 8, 4), (1.5, 8, 1), (0.5, 8, 1), (4.0, None, 4)]
)
def test_threads_of_one_core_count_once_and_a_part_of_one_not_at_all(
    monkeypatch: pytest.MonkeyPatch, cpus: float, cores: int | None, usable: int
) -> None:
    monkeypatch.setattr(host_limits, "available_cpus", lambda: cpus)
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 2 * cores if logical and cores else cores)
    assert usable_cores() == usable


def test_shared_memory_is_that_of_its_mount_and_nothing_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host_limits, "_SHM", str(tmp_path))
    total_bytes, free_bytes = shared_memory()
    assert total_bytes == psutil.disk_usage(str(tmp_path)).total
    assert 0 < free_bytes < total_bytes
    monkeypatch.setattr(host_limits, "_SHM", str(tmp_path / "not mounted"))
    assert shared_memory() == (0, 0)


def test_available_memory_is_the_smaller_of_host_and_group(tmp_path: Path) -> None:
    full = host_in_a_group(tmp_path, limit=f"{GIB}\n", usage=GIB - 4096, cpus="max 100000\n")
    assert read_memory(root=full).available_bytes <= 4096
