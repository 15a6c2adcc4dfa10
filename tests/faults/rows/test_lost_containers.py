"""Orchestrators that lose their container, or must not start one; all with a real daemon."""

import subprocess
from pathlib import Path

import pytest
import yaml
from contained import REWARD, STAGE_IMAGE, Scene, Trained, reference_spec, said
from fault_rows import Fault

from containers.contracts.outcome import FailureKind
from containers.contracts.spec import StageSpec
from containers.launch.arguments import docker_command
from containers.launch.base import LaunchRequest
from containers.launch.collect import read_outcome
from containers.launch.docker.runtime import DockerRuntime
from containers.launch.failures.classify import classify

pytestmark = [pytest.mark.slow, pytest.mark.docker]


@pytest.mark.parametrize(
    ("command", "message"),
    [("docker kill", "killed (137, not out of memory)"), ("docker rm -f", "the container was removed")],
    ids=["kill", "rm"],
)
def test_somebody_takes_the_container_away(
    scene: Scene, contained: Trained, fault: Fault, command: str, message: str
) -> None:
    fault.describe("containers", f"`{command}` in the middle of {REWARD}", parts="Docker")
    driven, container = scene.drive_to_step(12)
    subprocess.run([*command.split(), container.id], check=True, capture_output=True)
    fault.recovery_starts()
    assert driven.wait() == 0, driven.text
    failure = scene.failure(attempt=1)
    assert failure["kind"] == FailureKind.CONTAINER_LOST
    assert message in failure["message"]
    repeated = scene.assert_went_on(contained)
    assert (scene.num_created(), scene.containers()) == (2, [])
    fault.recovered(seen=f"tried again by itself from the checkpoint, bit for bit; says: {message}", repeated=repeated)


def test_out_of_memory_by_a_limit(scene: Scene, fault: Fault) -> None:
    limit_gib = 0.3
    fault.describe("containers", f"{REWARD} needs more than host_memory_gib {limit_gib} allows", parts="Docker, kernel")
    profile = yaml.safe_load((scene.tiny.folder / "configs/gpu_profiles/cpu.yaml").read_text())
    path = scene.tiny.folder / "configs/gpu_profiles/small-memory.yaml"
    path.write_text(yaml.safe_dump({**profile, "shm_size_gib": 0.0625, "host_memory_gib": limit_gib}))
    fault.recovery_starts()
    driven = scene.drive(f"gpu_profile={path}")
    assert driven.wait() == 1, driven.text
    assert scene.num_created() == 1, "it is not tried again unchanged"
    failure = scene.failure(attempt=1)
    assert failure["kind"] == FailureKind.OUT_OF_HOST_MEMORY
    assert f"host_memory_gib of profile `cpu`: {limit_gib} GiB" in failure["message"]
    assert scene.containers() == []
    fault.recovered(
        seen="classified out_of_host_memory from the kernel's flag, names the setting and its value, not tried again"
    )


def test_shared_memory_is_smaller_than_declared(scene: Scene, fault: Fault, tmp_path: Path) -> None:
    fault.describe("containers", "/dev/shm is smaller than the stage was promised", parts="Docker, stage program")
    spec = reference_spec(scene)
    too_small = spec.profile.model_copy(update={"shm_size_gib": 0.0625})
    (tmp_path / "work").mkdir()
    launch = LaunchRequest(
        spec=spec.model_copy(update={"profile": too_small}),
        spec_folder=tmp_path / "attempt",
        work_folder=tmp_path / "work",
        image=STAGE_IMAGE,
        labels={"rlhf.run_name": scene.name},
    )
    fault.recovery_starts()
    program = docker_command()[docker_command().index("--") + 1 :]  # without its supervisor
    shows_imports = (program[0], "-X", "importtime", *program[1:])
    stage_exit = DockerRuntime(command=shows_imports).run(launch)
    failure = classify(launch.spec, stage_exit, read_outcome(launch.work_folder))
    assert failure is not None
    assert failure.kind is FailureKind.MISSING_PREREQUISITE
    assert "asks for 256 MiB, this process has 64 MiB" in failure.message
    imported = {line.rpartition("|")[2].strip() for line in (launch.spec_folder / "stage.log").read_text().splitlines()}
    assert "pydantic" in imported
    assert "torch" not in imported
    fault.recovered(
        seen=f"refused after {stage_exit.duration_s:.1f} s, before torch is imported: asks for 256 MiB, has 64 MiB"
    )


def test_a_stage_fills_its_shared_memory(scene: Scene, contained: Trained, fault: Fault) -> None:
    fault.describe("containers", f"{REWARD} takes 300 MiB of a /dev/shm of 256 MiB", parts="Docker, stage program")
    fault.recovery_starts()
    driven = scene.drive_too_small("shared_memory", 300)
    assert driven.wait() == 0, driven.text
    assert scene.failure(attempt=1)["kind"] == FailureKind.SHM_EXHAUSTED
    specs = [StageSpec.model_validate_json(path.read_bytes()) for path in sorted(scene.attempts.glob("*/spec.json"))]
    assert [spec.profile.shm_size_gib for spec in specs] == [0.25, 0.5]
    assert "shm_size_gib 0.25 → 0.5" in said(driven)
    scene.assert_exact(contained)
    assert (scene.num_created(), scene.containers()) == (2, [])
    fault.recovered(seen="classified shm_exhausted; the second container has shm_size_gib 0.5; same weights and curves")


def test_a_foreign_container_has_our_name(scene: Scene, contained: Trained, fault: Fault) -> None:
    fault.describe("containers", "somebody's own container has the name that the stage needs", parts="Docker")
    name = f"rlhf-{REWARD}-{contained.key[:12]}"
    sleep = ["python", "-c", "import time; time.sleep(600)"]
    foreign = scene.client.containers.run(STAGE_IMAGE, sleep, name=name, detach=True, init=True, network_mode="none")
    try:
        fault.recovery_starts()
        driven = scene.drive()
        assert driven.wait() == 1, driven.text
        assert f"rename it: docker rename {name}" in driven.text
        foreign.reload()
        assert foreign.status == "running"
        assert scene.num_created() == 0
        fault.recovered(seen="refused with its name and what to do; it runs on, untouched")
    finally:
        foreign.remove(force=True)
