"""The group that a process lives in has the limit that counts, wherever it is mounted and however deep it lies.

Each tree has the files that the kernel shows to a process in such a place, at the paths where it shows them.
"""

from pathlib import Path

import pytest

from containers.host.control_groups import Memory, group_cpus, group_memory, oom_kills

GIB, MIB = 1024**3, 1024**2
UNLIMITED_1 = str(2**63 - 4096)
V2 = "/sys/fs/cgroup"
V2_MOUNT = "25 30 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
Files = dict[str, str]


def grown(root: Path, *, groups: str, mounts: str, files: Files) -> Path:
    """A file system of its own, with /proc/self and the mounts of control groups."""
    for name, text in {"/proc/self/cgroup": groups, "/proc/self/mountinfo": mounts, **files}.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.endswith("\n") else f"{text}\n")
    return root


def group_2(folder: str, *, limit: str, usage: int = 0, high: str = "max", cpu: str = "max 100000") -> Files:
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.high": high,
        f"{folder}/memory.current": str(usage),
        f"{folder}/memory.stat": f"anon {usage}\nfile 0\ninactive_file 0\nactive_file 0",
        f"{folder}/cpu.max": cpu,
    }


def group_1(folder: str, *, limit: str = UNLIMITED_1, usage: int = 0, inactive: int = 0, above: str = "") -> Files:
    return {
        f"{folder}/memory.limit_in_bytes": limit,
        f"{folder}/memory.usage_in_bytes": str(usage),
        f"{folder}/memory.stat": f"cache 0\nhierarchical_memory_limit {above or limit}\ntotal_inactive_file {inactive}",
    }


def systemd_scope(root: Path) -> Path:
    """`systemd-run --user --scope -p MemoryMax=3G -p CPUQuota=150%` on Ubuntu 22.04; the top has no limit files."""
    user = f"{V2}/user.slice/user-1000.slice"
    scope = f"{user}/user@1000.service/app.slice/run-r7.scope"
    return grown(
        root,
        groups="0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r7.scope",
        mounts=V2_MOUNT,
        files={
            **group_2(f"{V2}/user.slice", limit="max"),
            **group_2(user, limit=str(20 * GIB), usage=9 * GIB),
            **group_2(scope, limit=str(3 * GIB), usage=GIB, cpu="150000 100000"),
        },
    )


def slurm_step(root: Path) -> Path:
    """A job of 8 GiB and four cores' time (Slurm 22, cgroup/v2); its step and task have no limit of their own."""
    job = f"{V2}/system.slice/slurmstepd.scope/job_77"
    return grown(
        root,
        groups="0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0",
        mounts=V2_MOUNT,
        files={
            **group_2(job, limit=str(8 * GIB), usage=2 * GIB, cpu="400000 100000"),
            **group_2(f"{job}/step_0", limit=str(8 * GIB), usage=2 * GIB),
            **group_2(f"{job}/step_0/user/task_0", limit="max", usage=GIB),
        },
    )


def docker_2(root: Path) -> Path:
    """`docker run --memory 2g` with version 2: a namespace of its own, so that its group is the top of the mount."""
    mounts = "900 880 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate\n"
    return grown(
        root,
        groups="0::/",
        mounts=mounts,
        files=group_2(V2, limit=str(2 * GIB), usage=GIB // 2, cpu="50000 100000"),
    )


def docker_1(root: Path) -> Path:
    """`docker run --memory 2g` with version 1: the host's path in /proc, and its group mounted at the top."""
    mounts = (
        "701 695 0:31 /docker/c0ffee /sys/fs/cgroup/memory ro,nosuid,relatime master:11 - cgroup cgroup rw,memory\n"
        "702 695 0:32 /docker/c0ffee /sys/fs/cgroup/cpu,cpuacct ro,relatime master:12 - cgroup cgroup rw,cpu,cpuacct\n"
    )
    return grown(
        root,
        groups="5:cpu,cpuacct:/docker/c0ffee\n4:memory:/docker/c0ffee\n1:name=systemd:/docker/c0ffee",
        mounts=mounts,
        files={
            **group_1(f"{V2}/memory", limit=str(2 * GIB), usage=GIB),
            f"{V2}/cpu,cpuacct/cpu.cfs_quota_us": "50000",
            f"{V2}/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
    )


def nested_1(root: Path) -> Path:
    """Groups within groups: the smallest limit is in the middle, and what is mounted is the whole hierarchy."""
    mounts = (
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    )
    return grown(
        root,
        groups="4:memory:/machine/job/task\n1:cpu:/machine\n0::/",
        mounts=mounts,
        files={
            **group_1(f"{V2}/memory"),
            **group_1(f"{V2}/memory/machine", limit=str(12 * GIB), usage=11 * GIB, inactive=GIB),
            **group_1(f"{V2}/memory/machine/job", limit=str(3 * GIB), usage=GIB // 2),
            **group_1(f"{V2}/memory/machine/job/task", usage=GIB // 4, above=str(3 * GIB)),
            f"{V2}/cpu/machine/cpu.cfs_quota_us": "250000",
            f"{V2}/cpu/machine/cpu.cfs_period_us": "100000",
        },
    )


def hybrid(root: Path) -> Path:
    """Version 2 for systemd alone, without controllers; memory and CPUs are counted by version 1."""
    mounts = (
        "26 24 0:22 / /sys/fs/cgroup/unified rw,nosuid,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
        "27 24 0:23 / /sys/fs/cgroup/systemd rw,nosuid,relatime shared:10 - cgroup cgroup rw,xattr,name=systemd\n"
        "30 24 0:26 / /sys/fs/cgroup/memory rw,nosuid,relatime shared:13 - cgroup cgroup rw,memory\n"
    )
    return grown(
        root,
        groups="9:memory:/user.slice/run-r7.scope\n1:name=systemd:/user.slice/run-r7.scope\n"
        "0::/user.slice/run-r7.scope",
        mounts=mounts,
        files={
            f"{V2}/unified/user.slice/run-r7.scope/cgroup.procs": "4242",
            **group_1(f"{V2}/memory"),
            **group_1(f"{V2}/memory/user.slice"),
            **group_1(f"{V2}/memory/user.slice/run-r7.scope", limit=str(3 * GIB), usage=GIB),
        },
    )


@pytest.mark.parametrize(
    ("place", "memory", "cpus"),
    [
        (systemd_scope, Memory(3 * GIB, 2 * GIB), 1.5),
        (slurm_step, Memory(8 * GIB, 6 * GIB), 4.0),
        (docker_2, Memory(2 * GIB, 3 * GIB // 2), 0.5),
        (docker_1, Memory(2 * GIB, GIB), 0.5),
        # The group above has less left than the smallest limit: 12 − (11 − 1).
        (nested_1, Memory(3 * GIB, 2 * GIB), 2.5),
        (hybrid, Memory(3 * GIB, 2 * GIB), None),
    ],
)
def test_the_smallest_limit_of_the_own_group_and_of_those_above_counts(
    tmp_path: Path, place: object, memory: Memory, cpus: float | None
) -> None:
    assert callable(place)
    root = place(tmp_path)
    assert (group_memory(root=root), group_cpus(root=root)) == (memory, cpus)


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    root = grown(
        tmp_path,
        groups="0::/init.scope",
        mounts=V2_MOUNT,
        files=group_2(f"{V2}/init.scope", limit="max", usage=GIB),
    )
    assert (group_memory(root=root), group_cpus(root=root)) == (None, None)
    assert group_memory(root=tmp_path / "no /proc here") is None


def test_a_group_that_the_kernel_slows_down_has_that_limit(tmp_path: Path) -> None:
    files = group_2(f"{V2}/job", limit=str(8 * GIB), high=str(6 * GIB), usage=GIB)
    root = grown(tmp_path, groups="0::/job", mounts=V2_MOUNT, files=files)
    assert group_memory(root=root) == Memory(6 * GIB, 5 * GIB)


def test_pages_of_files_that_can_be_dropped_are_not_taken(tmp_path: Path) -> None:
    files = group_2(f"{V2}/job", limit=str(4 * GIB), usage=4 * GIB)
    files[f"{V2}/job/memory.stat"] = f"anon {GIB}\nfile {3 * GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}"
    root = grown(tmp_path, groups="0::/job", mounts=V2_MOUNT, files=files)
    assert group_memory(root=root) == Memory(4 * GIB, 2 * GIB)


def test_a_limit_above_the_mount_is_the_kernels_to_tell(tmp_path: Path) -> None:
    """A container of version 1 whose pod has less than it: the pod's group is not mounted inside."""
    root = grown(
        tmp_path,
        groups="4:memory:/kubepods/pod1/c0ffee",
        mounts="701 695 0:31 /kubepods/pod1/c0ffee /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        files=group_1(f"{V2}/memory", limit=str(8 * GIB), usage=GIB, above=str(4 * GIB)),
    )
    assert group_memory(root=root) == Memory(4 * GIB, 3 * GIB)


@pytest.mark.parametrize(
    ("groups", "mounted"),
    [
        # The process was moved out of the namespace that mounted it, or the mount was handed in from another one.
        ("0::/../other", "/"),
        ("0::/docker/c0ffee", "/docker/another"),
        ("0::/", "/../.."),
        # The group was removed, or lies in a part of the hierarchy that is not shown.
        ("0::/gone (deleted)", "/"),
    ],
)
def test_where_the_own_group_is_not_shown_the_top_of_the_mount_counts(
    tmp_path: Path, groups: str, mounted: str
) -> None:
    mounts = V2_MOUNT.replace(" / /sys", f" {mounted} /sys")
    root = grown(tmp_path, groups=groups, mounts=mounts, files=group_2(V2, limit=str(2 * GIB), usage=GIB))
    assert group_memory(root=root) == Memory(2 * GIB, GIB)


def test_of_several_mounts_the_one_that_shows_the_own_group_counts(tmp_path: Path) -> None:
    mounts = (
        "40 30 0:26 /docker/another /other rw - cgroup2 cgroup2 rw\n"
        "41 30 0:26 /docker/c0ffee /mnt/control\\040groups rw,relatime shared:4 master:1 - cgroup2 cgroup2 rw\n"
    )
    root = grown(
        tmp_path,
        groups="0::/docker/c0ffee/inner",
        mounts=mounts,
        files={
            **group_2("/other", limit=str(64 * GIB)),
            **group_2("/mnt/control groups", limit=str(4 * GIB), usage=MIB),
            **group_2("/mnt/control groups/inner", limit=str(3 * GIB), usage=MIB),
        },
    )
    assert group_memory(root=root) == Memory(3 * GIB, 3 * GIB - MIB)


def test_what_the_kernel_killed_for_memory_is_counted_in_the_own_group_where_it_tells(tmp_path: Path) -> None:
    machine = {"/proc/vmstat": "oom_kill 9\nnr_free_pages 1"}
    job, scope = f"{V2}/job", f"{V2}/job/scope"
    events = {
        f"{job}/memory.events": "low 0\noom 3\noom_kill 3\noom_group_kill 0",
        f"{scope}/memory.events": "low 0\nhigh 7\noom 1\noom_kill 1\noom_group_kill 0",
    }
    in_version_2 = grown(tmp_path / "2", groups="0::/job/scope", mounts=V2_MOUNT, files={**events, **machine})
    assert oom_kills(root=in_version_2) == 1
    at_the_top = grown(tmp_path / "top", groups="0::/", mounts=V2_MOUNT, files=machine)
    assert oom_kills(root=at_the_top) == 9
    controls = {f"{V2}/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2"}
    mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    in_version_1 = grown(tmp_path / "1", groups="4:memory:/job", mounts=mounts, files={**controls, **machine})
    assert oom_kills(root=in_version_1) == 2
    assert oom_kills(root=tmp_path / "nothing") == 0
