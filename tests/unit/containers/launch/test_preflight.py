"""A run that cannot work must be refused before it costs anything, with the figure found and the figure wanted."""

import os
import resource
import shutil
from pathlib import Path

import pytest
from fakes.docker_daemon import FakeDaemon

from containers.contracts.hardware import GIB, GpuProfile
from containers.host.control_groups import Memory
from containers.launch.docker.state import DockerState, ImageState, read_docker, read_image
from containers.launch.host_limits import shared_memory
from containers.launch.preflight import (
    cpu_finding,
    disk_finding,
    docker_findings,
    matching_interfaces,
    memlock_finding,
    memory_finding,
    network_finding,
    shm_finding,
)

CPU = GpuProfile(name="cpu", num_gpus=0, precision="float32", shm_size_gib=1)
TWO_GPUS = GpuProfile(name="2x48gb", num_gpus=2, num_processes=2, gpu_memory_gib=48, shm_size_gib=16)
SOURCES = "sha256:" + "a" * 64


def test_a_daemon_with_image_from_the_same_sources_passes(daemon: FakeDaemon) -> None:
    daemon.add_image("rlhf-stage:cpu", labels={"rlhf.stages_digest": SOURCES})
    state, image = read_docker(), read_image("rlhf-stage:cpu")
    rows = docker_findings(state, image, CPU, stages_digest=SOURCES)
    assert [row.verdict for row in rows] == ["ok", "ok", "ok"]
    assert rows[0].found == "version 27.0.1"
    assert image.digest.startswith("sha256:")


def test_an_image_from_other_sources_is_refused_with_both_digests(daemon: FakeDaemon) -> None:
    daemon.add_image("old:cpu", labels={"rlhf.stages_digest": "sha256:" + "b" * 64})
    there, programs = docker_findings(read_docker(), read_image("old:cpu"), CPU, stages_digest=SOURCES)[-2:]
    assert there.verdict == "ok"
    assert (programs.verdict, programs.found, programs.wanted) == (
        "failure",
        "sha256:bbbbbbbbbbbb",
        "sha256:aaaaaaaaaaaa",
    )
    assert "make image IMAGE=old:cpu" in programs.advice


def test_somebody_elses_image_is_refused(daemon: FakeDaemon) -> None:
    daemon.add_image("busybox", labels={})
    row = docker_findings(read_docker(), read_image("busybox"), CPU, stages_digest=SOURCES)[-1]
    assert (row.name, row.verdict) == ("stage image", "failure")
    assert row.found == "busybox is no stage image (it has no label rlhf.stages_digest)"
    assert "make image" in row.advice


def test_a_missing_image_names_the_command_that_builds_it(daemon: FakeDaemon) -> None:
    row = docker_findings(read_docker(), read_image("rlhf-stage:gpu"), CPU, stages_digest=SOURCES)[-1]
    assert (row.verdict, row.found) == ("failure", "rlhf-stage:gpu is not on this machine")
    assert "make image IMAGE=rlhf-stage:gpu" in row.advice


def test_without_a_daemon_nothing_else_is_asked() -> None:
    away = DockerState(problem="there is no Docker socket", advice="Start it.")
    rows = docker_findings(away, ImageState(name="x", problem="unknown"), TWO_GPUS, stages_digest=SOURCES)
    assert [(row.name, row.verdict, row.advice) for row in rows] == [("Docker daemon", "failure", "Start it.")]


def test_the_nvidia_runtime_is_demanded_on_gpu_profiles_only(daemon: FakeDaemon) -> None:
    daemon.add_image("rlhf-stage:gpu", labels={})
    image = read_image("rlhf-stage:gpu")
    names = [row.name for row in docker_findings(read_docker(), image, CPU, stages_digest=SOURCES)]
    assert "NVIDIA runtime" not in names
    without = docker_findings(read_docker(), image, TWO_GPUS, stages_digest=SOURCES)[1]
    assert without.verdict == "failure" and "nvidia-ctk" in without.advice
    daemon.info["Runtimes"] = {"runc": {}, "nvidia": {"path": "nvidia-container-runtime"}}
    registered = docker_findings(read_docker(), image, TWO_GPUS, stages_digest=SOURCES)[1]
    assert (registered.verdict, registered.found) == ("ok", "registered")
    daemon.info["Runtimes"] = {"runc": {}}
    daemon.info["DiscoveredDevices"] = [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]
    assert docker_findings(read_docker(), image, TWO_GPUS, stages_digest=SOURCES)[1].found == "by CDI"


def test_shared_memory_of_docker_must_fit_into_memory() -> None:
    fits = shm_finding(TWO_GPUS, runtime="docker", machine_bytes=64 * GIB)
    assert fits.verdict == "ok"
    too_much = shm_finding(TWO_GPUS, runtime="docker", machine_bytes=12 * GIB)
    assert (too_much.verdict, too_much.wanted) == ("failure", "16.0 GiB")
    assert "9.40 GiB of memory" in too_much.found and "the 12.0 GiB of this machine" in too_much.advice
    limited = TWO_GPUS.model_copy(update={"host_memory_gib": 8.0})
    assert shm_finding(limited, runtime="docker", machine_bytes=64 * GIB).verdict == "failure"
    # What is kept for the servers is no room for shared memory, unless somebody says so.
    assert shm_finding(TWO_GPUS, runtime="docker", machine_bytes=18 * GIB).verdict == "failure"
    unlimited = TWO_GPUS.model_copy(update={"host_memory_gib": "unlimited"})
    assert shm_finding(unlimited, runtime="docker", machine_bytes=18 * GIB).verdict == "ok"


def test_shared_memory_of_a_process_is_the_hosts() -> None:
    size, _ = shared_memory()
    vast_gib = size // GIB + 2
    vast = CPU.model_copy(update={"shm_size_gib": vast_gib})
    row = shm_finding(vast, runtime="process")
    assert row.verdict == "failure"
    assert f"remount,size={vast_gib * 1024}M /dev/shm" in row.advice
    small = CPU.model_copy(update={"shm_size_gib": 1 / 1024})
    assert shm_finding(small, runtime="process").verdict == "ok"


def test_memlock_matters_to_processes_on_gpus_only() -> None:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    row = memlock_finding(TWO_GPUS, runtime="process")
    assert row.verdict == ("ok" if soft == resource.RLIM_INFINITY else "warning")
    low = TWO_GPUS.model_copy(update={"memlock_bytes": 4096})
    assert memlock_finding(low, runtime="process").verdict == "ok"
    assert memlock_finding(TWO_GPUS, runtime="docker").found == "set by Docker"
    assert memlock_finding(CPU, runtime="process").verdict == "ok"


@pytest.mark.parametrize(("memlock_bytes", "wanted"), [(-1, "unlimited"), (0, "any"), (4096, "4.00 KiB")])
def test_a_small_memlock_limit_does_not_read_as_none(memlock_bytes: int, wanted: str) -> None:
    profile = TWO_GPUS.model_copy(update={"memlock_bytes": memlock_bytes})
    assert memlock_finding(profile, runtime="process").wanted == wanted


def test_memory_is_compared_with_what_is_free_now() -> None:
    little = Memory(total_bytes=16 * GIB, available_bytes=2 * GIB)
    short = memory_finding(CPU, needed_bytes=5 * GIB, runtime="process", memory=little)
    assert (short.verdict, short.wanted) == ("failure", "5.00 GiB (estimated)")
    assert short.found.startswith("2.00 GiB free of 16.0 GiB; ")
    assert "3.00 GiB are missing" in short.advice
    assert memory_finding(CPU, needed_bytes=GIB, runtime="process", memory=little).verdict == "ok"


def test_a_limit_that_is_named_is_held_against_what_is_needed() -> None:
    little = Memory(total_bytes=16 * GIB, available_bytes=2 * GIB)
    useless = CPU.model_copy(update={"host_memory_gib": 32.0})
    assert memory_finding(useless, needed_bytes=0, runtime="docker", memory=little).verdict == "warning"
    tight = CPU.model_copy(update={"host_memory_gib": 1.0})
    limited = memory_finding(tight, needed_bytes=int(1.5 * GIB), runtime="docker", memory=little)
    assert limited.verdict == "failure"
    assert limited.found == "a limit of 1.00 GiB; host_memory_gib of profile `cpu`: 1 GiB"
    assert limited.wanted == "1.50 GiB (estimated)" and "to 2," in limited.advice


def test_a_derived_limit_is_shown_with_its_figures_and_refuses_what_would_be_killed() -> None:
    idle = Memory(total_bytes=16 * GIB, available_bytes=15 * GIB)
    fits = memory_finding(CPU, needed_bytes=13 * GIB, runtime="docker", memory=idle)
    assert (fits.verdict, fits.found) == (
        "ok",
        "15.0 GiB free of 16.0 GiB; host_memory_gib of profile `cpu` is not set; derived 13.2 GiB from the 16.0 GiB of "
        "this machine less 2.80 GiB for servers, orchestrator and system",
    )
    killed = memory_finding(CPU, needed_bytes=14 * GIB, runtime="docker", memory=idle)
    assert killed.verdict == "failure" and "host_memory_gib in the GPU profile to 14" in killed.advice
    unlimited = CPU.model_copy(update={"host_memory_gib": "unlimited"})
    assert memory_finding(unlimited, needed_bytes=14 * GIB, runtime="docker", memory=idle).verdict == "ok"
    unable = memory_finding(CPU, needed_bytes=14 * GIB, runtime="docker", can_limit=False, memory=idle)
    assert unable.verdict == "ok" and unable.found.endswith("this Docker daemon cannot limit memory")
    # A virtual machine of the daemon's has less.
    small = memory_finding(CPU, needed_bytes=5 * GIB, runtime="docker", machine_bytes=4 * GIB, memory=idle)
    assert small.verdict == "failure" and "derived 2.00 GiB, half of the 4.00 GiB" in small.found


def test_the_process_runtime_says_that_it_enforces_no_limit() -> None:
    idle = Memory(total_bytes=16 * GIB, available_bytes=15 * GIB)
    unset = memory_finding(CPU, needed_bytes=14 * GIB, runtime="process", memory=idle)
    assert unset.verdict == "ok" and unset.found.endswith("the process runtime enforces no limit")
    named = CPU.model_copy(update={"host_memory_gib": 4.0})
    row = memory_finding(named, needed_bytes=2 * GIB, runtime="process", memory=idle)
    assert row.verdict == "warning" and "MemoryMax=4294967296" in row.advice


def test_more_threads_than_cpus_is_a_warning() -> None:
    assert cpu_finding(CPU).verdict == "ok"
    greedy = CPU.model_copy(update={"num_threads": 200})
    row = cpu_finding(greedy)
    assert (row.verdict, row.wanted) == ("warning", "200 (ranks 1 × threads 200)")


def test_disk_is_measured_where_the_run_will_write(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert disk_finding(tmp_path / "not" / "yet", needed_bytes=1).verdict == "ok"
    assert not (tmp_path / "not").exists()
    short = disk_finding(tmp_path, needed_bytes=free * 2)
    assert short.verdict == "failure"
    assert str(tmp_path) in short.found and "are missing" in short.advice
    assert disk_finding(tmp_path, needed_bytes=int(free * 0.7)).verdict == "warning"


def test_an_output_folder_that_is_a_file_or_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    assert disk_finding(tmp_path / "taken" / "run", needed_bytes=1).verdict == "failure"
    assert disk_finding(tmp_path / "taken", needed_bytes=1).found == f"{tmp_path / 'taken'} is a file"
    if os.getuid():
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        assert "cannot be written" in disk_finding(locked / "run", needed_bytes=1).found


def test_a_path_that_no_file_system_takes_is_a_finding(tmp_path: Path) -> None:
    row = disk_finding(tmp_path / ("x" * 300) / "run", needed_bytes=1)
    assert row.verdict == "failure"
    assert row.found.endswith("File name too long")
    assert len(row.found) < 200
    assert row.advice == "Set run.output_dir to a shorter path."


def test_many_ranks_want_an_interface_that_the_pattern_matches() -> None:
    assert network_finding(CPU, runtime="process", interfaces=()).verdict == "ok"
    assert network_finding(TWO_GPUS, runtime="process", interfaces=("eth0",)).verdict == "ok"
    assert network_finding(TWO_GPUS, runtime="process", interfaces=()).verdict == "warning"
    assert network_finding(TWO_GPUS, runtime="docker", interfaces=()).verdict == "ok"
    nccl = TWO_GPUS.nccl.model_copy(update={"socket_ifname": "ib0"})
    row = network_finding(TWO_GPUS.model_copy(update={"nccl": nccl}), runtime="process", interfaces=("eth0",))
    assert (row.verdict, row.wanted) == ("failure", "one that matches ib0")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("eth", ("eth0", "eth10")),
        ("=eth0", ("eth0",)),
        ("^eth,lo", ("docker0",)),
        ("^=eth1", ("docker0", "eth0", "eth10", "lo")),
    ],
)
def test_interface_patterns_mean_what_they_mean_to_nccl(pattern: str, names: tuple[str, ...]) -> None:
    assert matching_interfaces(pattern, ("docker0", "eth0", "eth10", "lo")) == names
