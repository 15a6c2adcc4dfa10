"""A run that cannot work must be refused before it costs anything, with the figure found and the figure wanted."""

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.docker_daemon import FakeDaemon

from containers.contracts.hardware import GIB, GpuProfile
from containers.contracts.records import CheckFinding
from containers.launch.docker_state import DockerState, ImageState, read_docker, read_image
from containers.launch.gpu_findings import gpu_findings
from containers.launch.gpus import read_gpus
from containers.launch.host_limits import Memory, available_cpus, read_memory, shared_memory
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
ONE_GPU = TWO_GPUS.model_copy(update={"name": "1x48gb", "num_gpus": 1, "num_processes": 1})
SOURCES = "sha256:" + "a" * 64


@pytest.fixture
def smi(project: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("PATH", f"{project / 'tests' / 'fakes'}{os.pathsep}{os.environ['PATH']}")
    return monkeypatch


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "docker.sock") as fake:
        monkeypatch.setenv("DOCKER_HOST", fake.url)
        yield fake


def _gpu_rows(
    smi: pytest.MonkeyPatch, mode: str, profile: GpuProfile = TWO_GPUS, *, visible: str | None = None
) -> dict[str, CheckFinding]:
    smi.setenv("FAKE_SMI", mode)
    return {row.name: row for row in gpu_findings(read_gpus(timeout_s=5), profile, visible=visible)}


def test_healthy_free_cards_pass(smi: pytest.MonkeyPatch) -> None:
    rows = _gpu_rows(smi, "ok")
    assert {row.verdict for row in rows.values()} == {"ok"}
    assert rows["GPU 0"].found == "NVIDIA RTX 6000 Ada Generation, 49137/49140 MiB free, 41 °C"
    assert rows["NVIDIA driver"].found == "570.86.15"


def test_a_card_that_others_use_is_refused_with_figures_and_holder(smi: pytest.MonkeyPatch) -> None:
    row = _gpu_rows(smi, "busy")["GPU 0"]
    assert row.verdict == "failure"
    assert row.found == "GPU 0: 38000/49140 MiB used by others (pid 123 python)"


def test_memory_held_by_a_process_of_another_namespace_counts_as_busy(smi: pytest.MonkeyPatch) -> None:
    row = _gpu_rows(smi, "hidden")["GPU 1"]
    assert row.verdict == "failure"
    assert row.found == "GPU 1: 20000/49140 MiB used by others (processes not visible from here)"


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        ("ecc", "GPU 1: 7 uncorrected ECC errors"),
        ("retired", "GPU 1: a memory page waits to be retired (5 retired so far)"),
    ],
)
def test_a_card_with_memory_errors_is_refused_with_its_counter(smi: pytest.MonkeyPatch, mode: str, found: str) -> None:
    rows = _gpu_rows(smi, mode)
    assert rows["GPU 0"].verdict == "ok"
    assert rows["GPU 1"].verdict == "failure"
    assert rows["GPU 1"].found.startswith(found)


def test_old_memory_errors_are_a_warning(smi: pytest.MonkeyPatch) -> None:
    row = _gpu_rows(smi, "oldecc")["GPU 0"]
    assert row.verdict == "warning"
    assert "2 retired pages, 4 uncorrected ECC errors over its life" in row.found


def test_mig_stops_many_ranks_and_warns_one(smi: pytest.MonkeyPatch) -> None:
    assert _gpu_rows(smi, "mig")["GPU 0"].verdict == "failure"
    assert _gpu_rows(smi, "mig", ONE_GPU)["GPU 0"].verdict == "warning"


def test_a_bad_card_that_the_run_does_not_use_does_not_hinder_it(smi: pytest.MonkeyPatch) -> None:
    rows = _gpu_rows(smi, "ecc", ONE_GPU)
    assert "GPU 1" not in rows
    assert {row.verdict for row in rows.values()} == {"ok"}


def test_visible_devices_choose_the_cards_that_are_judged(smi: pytest.MonkeyPatch) -> None:
    rows = _gpu_rows(smi, "busy", ONE_GPU, visible="1")
    assert "GPU 0" not in rows
    assert rows["GPU 1"].verdict == "ok"
    hidden = _gpu_rows(smi, "ok", TWO_GPUS, visible="1")["GPUs"]
    assert hidden.verdict == "failure"
    assert hidden.found == "1 (NVIDIA RTX 6000 Ada Generation); CUDA_VISIBLE_DEVICES=1 of 2"
    assert _gpu_rows(smi, "ok", ONE_GPU, visible="-1")["GPUs"].verdict == "failure"


def test_too_few_or_too_small_cards_are_refused(smi: pytest.MonkeyPatch) -> None:
    eight = TWO_GPUS.model_copy(update={"name": "8x48gb", "num_gpus": 8, "num_processes": 8})
    row = _gpu_rows(smi, "ok", eight)["GPUs"]
    assert (row.verdict, row.wanted) == ("failure", "8 × 48 GiB (8x48gb)")
    assert row.found.startswith("2 (")
    big = ONE_GPU.model_copy(update={"gpu_memory_gib": 80})
    assert _gpu_rows(smi, "ok", big)["GPU 0"].found == "GPU 0: 48.0 GiB"


@pytest.mark.parametrize("mode", ["norc", "gone", "garbage", "mismatch", "none"])
def test_an_answer_that_cannot_be_believed_is_one_failed_row(smi: pytest.MonkeyPatch, mode: str) -> None:
    rows = _gpu_rows(smi, mode)
    assert list(rows) == ["GPUs"]
    assert rows["GPUs"].verdict == "failure"
    assert rows["GPUs"].advice


def test_a_cpu_profile_needs_no_gpu_tool(smi: pytest.MonkeyPatch) -> None:
    rows = _gpu_rows(smi, "mismatch", CPU)
    assert [row.verdict for row in rows.values()] == ["ok"]


def test_a_daemon_with_image_from_the_same_sources_passes(daemon: FakeDaemon) -> None:
    daemon.add_image("rlhf-stage:cpu", labels={"rlhf.stages_digest": SOURCES})
    state, image = read_docker(), read_image("rlhf-stage:cpu")
    rows = docker_findings(state, image, CPU, stages_digest=SOURCES)
    assert [row.verdict for row in rows] == ["ok", "ok", "ok"]
    assert rows[0].found == "version 27.0.1"
    assert image.digest.startswith("sha256:")


def test_an_image_from_other_sources_is_refused_and_one_without_label_warned_about(daemon: FakeDaemon) -> None:
    daemon.add_image("old:cpu", labels={"rlhf.stages_digest": "sha256:" + "b" * 64})
    daemon.add_image("plain:cpu", labels={})
    state = read_docker()
    old = docker_findings(state, read_image("old:cpu"), CPU, stages_digest=SOURCES)[-1]
    plain = docker_findings(state, read_image("plain:cpu"), CPU, stages_digest=SOURCES)[-1]
    assert (old.verdict, old.found, old.wanted) == ("failure", "sha256:bbbbbbbbbbbb", "sha256:aaaaaaaaaaaa")
    assert "make image IMAGE=old:cpu" in old.advice
    assert plain.verdict == "warning"


def test_a_missing_image_names_the_command_that_builds_it(daemon: FakeDaemon) -> None:
    row = docker_findings(read_docker(), read_image("rlhf-stage:gpu"), CPU, stages_digest=SOURCES)[-1]
    assert (row.verdict, row.found) == ("failure", "rlhf-stage:gpu is not on this machine")
    assert "make image IMAGE=rlhf-stage:gpu" in row.advice


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


def test_a_daemon_that_is_away_hangs_or_talks_nonsense_gives_a_reason(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.behaviour = "hang"
    assert read_docker(timeout_s=1).problem == "the daemon did not answer within 1 s"
    daemon.behaviour = "nonsense"
    assert read_docker().problem.startswith("the daemon's answer cannot be used")
    daemon.behaviour = "error"
    assert "could not find bridge docker0" in read_docker().problem

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert read_docker().problem == "there is no Docker socket"
    assert read_image("any").problem == "there is no Docker socket"

    deaf = tmp_path / "deaf.sock"
    with socket.socket(socket.AF_UNIX) as unheard:
        unheard.bind(str(deaf))  # bound, nobody listens
        monkeypatch.setenv("DOCKER_HOST", f"unix://{deaf}")
        state = read_docker()
    assert state.problem == "the Docker socket is there, but no daemon listens"
    row = docker_findings(state, ImageState(name="x", problem="unknown"), TWO_GPUS, stages_digest=SOURCES)
    assert [(row.name, row.verdict) for row in row] == [("Docker daemon", "failure")]
    assert "systemctl start docker" in row[0].advice


def test_shared_memory_of_docker_must_fit_into_memory() -> None:
    fits = shm_finding(TWO_GPUS, runtime="docker", docker_memory_bytes=64 * GIB)
    assert fits.verdict == "ok"
    too_much = shm_finding(TWO_GPUS, runtime="docker", docker_memory_bytes=12 * GIB)
    assert (too_much.verdict, too_much.wanted) == ("failure", "16.0 GiB")
    assert "12.0 GiB" in too_much.found
    limited = TWO_GPUS.model_copy(update={"host_memory_gib": 8.0})
    assert shm_finding(limited, runtime="docker", docker_memory_bytes=64 * GIB).verdict == "failure"


def test_shared_memory_of_a_process_is_the_hosts() -> None:
    size, _ = shared_memory()
    vast = CPU.model_copy(update={"shm_size_gib": size / GIB + 1})
    row = shm_finding(vast, runtime="process")
    assert row.verdict == "failure"
    assert "--shm-size" in row.advice
    small = CPU.model_copy(update={"shm_size_gib": 1 / 1024})
    assert shm_finding(small, runtime="process").verdict == "ok"


def test_memlock_matters_to_processes_on_gpus_only() -> None:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    row = memlock_finding(TWO_GPUS, runtime="process")
    assert row.verdict == ("ok" if soft == resource.RLIM_INFINITY else "warning")
    low = TWO_GPUS.model_copy(update={"memlock_bytes": 4096})
    assert memlock_finding(low, runtime="process").verdict == "ok"
    assert memlock_finding(TWO_GPUS, runtime="docker").found == "set by Docker"
    assert memlock_finding(CPU, runtime="process").verdict == "ok"


def test_memory_is_compared_with_what_is_free_now() -> None:
    little = Memory(total_bytes=16 * GIB, available_bytes=2 * GIB)
    short = memory_finding(CPU, needed_bytes=5 * GIB, memory=little)
    assert (short.verdict, short.found, short.wanted) == ("failure", "2.0 GiB free of 16.0 GiB", "5.0 GiB")
    assert "3.0 GiB are missing" in short.advice
    assert memory_finding(CPU, needed_bytes=GIB, memory=little).verdict == "ok"
    useless = CPU.model_copy(update={"host_memory_gib": 32.0})
    assert memory_finding(useless, needed_bytes=0, memory=little).verdict == "warning"


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


def test_no_gpus_are_handed_out_by_a_daemon_that_knows_none() -> None:
    assert not DockerState(version="20.10", runtimes=("runc",)).hands_out_gpus


@pytest.mark.docker
def test_the_real_daemon_answers_with_version_and_memory() -> None:
    state = read_docker()
    assert state.answers and state.version and state.memory_bytes > GIB
    assert "runc" in state.runtimes
    assert read_image("rlhf-no-such-image:never").problem == "not on this machine"
