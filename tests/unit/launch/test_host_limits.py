"""What a cgroup allows counts, and not what the host has: a stage in a small container dies of the difference."""

import os
from pathlib import Path

import pytest

from containers.contracts.hardware import GIB
from containers.launch import host_limits
from containers.launch.host_limits import Memory, available_cpus, read_memory, usable_cores


def test_the_limits_of_a_cgroup_count(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB // 4}\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    memory = read_memory(cgroup=tmp_path)
    assert memory.total_bytes == GIB
    assert memory.available_bytes <= GIB - GIB // 4
    assert available_cpus(cgroup=tmp_path) == 0.5
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert read_memory(cgroup=tmp_path).total_bytes > GIB
    assert available_cpus(cgroup=tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("cpus", "cores", "usable"), [(16.0, 8, 8), (4.0, 8, 4), (1.5, 8, 1), (0.5, 8, 1), (4.0, None, 4)]
)
def test_threads_of_one_core_count_once_and_a_part_of_one_not_at_all(
    monkeypatch: pytest.MonkeyPatch, cpus: float, cores: int | None, usable: int
) -> None:
    monkeypatch.setattr(host_limits, "available_cpus", lambda: cpus)
    monkeypatch.setattr("psutil.cpu_count", lambda logical: cores)
    assert usable_cores() == usable


def test_the_limits_of_a_version_1_cgroup_count(tmp_path: Path) -> None:
    for name, text in (
        ("memory/memory.limit_in_bytes", str(GIB)),
        ("memory/memory.usage_in_bytes", str(GIB)),
        ("cpu/cpu.cfs_quota_us", "150000"),
        ("cpu/cpu.cfs_period_us", "100000"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_memory(cgroup=tmp_path) == Memory(total_bytes=GIB, available_bytes=0)
    assert available_cpus(cgroup=tmp_path) == min(1.5, len(os.sched_getaffinity(0)))
