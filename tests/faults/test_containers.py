"""Containers that lose their orchestrator, and orchestrators that lose their container; all with a real daemon."""

import fcntl
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest
import yaml
from contained import (
    BEFORE,
    DOCKER,
    REFERENCE_STORE,
    REWARD,
    STAGE_IMAGE,
    Scene,
    Trained,
    at_full_speed,
    reference_spec,
    said,
    slowed,
)
from docker.models.containers import Container
from fault_rows import Fault
from private_daemon import NoPrivateDaemonError, PrivateDaemon
from tiny_project import (
    TinyProject,
    curves,
    recorded_step,
    recorded_steps,
    wait_for,
    weights_digest,
)

from containers.contracts.names import OUTCOME_FILE
from containers.contracts.outcome import FailureKind
from containers.launch.arguments import DOCKER_COMMAND
from containers.launch.collect import read_outcome
from containers.launch.docker import DockerRuntime, connect, stage_image_digest
from containers.launch.failure import classify
from containers.launch.runtime import Launch, LaunchError

pytestmark = [pytest.mark.slow, pytest.mark.docker]

GRACE_S = 30


@pytest.fixture(scope="session")
def client() -> Iterator[docker.DockerClient]:
    try:
        stage_image_digest(STAGE_IMAGE)
    except LaunchError as error:
        pytest.skip(f"NOTHING WAS TESTED WITH DOCKER: {error}")
    connected = connect()
    yield connected
    connected.close()


@pytest.fixture(scope="session")
def contained(tiny: TinyProject, client: docker.DockerClient) -> Trained:
    """One training in containers, in a store of its own, once for all tests."""
    driven = tiny.drive(REWARD, "run.name=contained", f"run.store_dir=outputs/{REFERENCE_STORE}", *DOCKER)
    assert driven.wait() == 0, driven.text
    artifact = tiny.artifact(REWARD, "contained")
    return Trained(artifact.name, weights_digest(artifact), curves(artifact))


@pytest.fixture
def scene(
    tiny: TinyProject, contained: Trained, client: docker.DockerClient, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    words = re.findall(r"[a-z0-9]+", request.node.name.removeprefix("test_"))
    name = "-".join(words)[:60].rstrip("-")
    scene = Scene(tiny, client, name, began_s=int(time.time()))
    tiny.copy_finished(BEFORE, source=REFERENCE_STORE, target=scene.store)
    yield scene
    for container in scene.containers():
        container.remove(force=True)


def test_kill_9_of_the_orchestrator_while_its_container_works(scene: Scene, contained: Trained, fault: Fault) -> None:
    fault.describe("containers", f"`kill -9` of the orchestrator while the container of {REWARD} works", parts="Docker")
    driven, container = scene.drive_to_step(8)
    driven.kill()
    slowed(container)
    container.reload()
    assert container.status == "running", "the container lives on"
    fault.recovery_starts()
    again = scene.drive()
    wait_for(lambda: "still works" in said(again), of=again, what="the take-over")
    at_full_speed(container)
    assert again.wait() == 0, again.text
    scene.assert_exact(contained)
    steps = recorded_steps(scene.work)
    assert len(steps) == len(set(steps)), "no step was done twice"
    assert scene.num_created() == 1
    assert scene.containers() == []
    fault.recovered(
        seen=f"the same command goes on with the container ({scene.num_created()} container in all) and says so; "
        "weights and curves equal the undisturbed run's",
        repeated=f"{len(steps) - len(set(steps))} steps",
    )


def test_a_container_that_finishes_while_its_orchestrator_is_dead(
    scene: Scene, contained: Trained, fault: Fault
) -> None:
    fault.describe("containers", "`kill -9` of the orchestrator; its container finishes meanwhile", parts="Docker")
    driven, container = scene.drive_to_step(8)
    driven.kill()
    assert container.wait(timeout=300)["StatusCode"] == 0
    fault.recovery_starts()
    again = scene.drive()
    assert again.wait() == 0, again.text
    assert "ended with exit code 0" in said(again)
    scene.assert_exact(contained)
    steps = recorded_steps(scene.work)
    assert (len(steps), scene.num_created(), scene.containers()) == (len(set(steps)), 1, [])
    fault.recovered(
        seen="the same command takes result and log from the container that ended, and starts none",
        repeated=f"{len(steps) - len(set(steps))} steps",
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [("docker kill", "killed (137, not out of memory)"), ("docker rm -f", "somebody removed the container")],
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


def test_sigterm_of_the_orchestrator(scene: Scene, contained: Trained, fault: Fault) -> None:
    fault.describe("containers", f"SIGTERM of `rlhf run` in {REWARD}", parts="rlhf run, Prefect server, Docker")
    running = scene.tiny.rlhf(*scene.settings)
    work = scene.tiny.wait_for_step(REWARD, 12, of=running, store=scene.store)
    began = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    wait_for(lambda: not scene.containers(), timeout_s=GRACE_S + 30, what="the container's end")
    gone_after_s = time.monotonic() - began
    running.wait()
    assert running.process.returncode != 0
    assert gone_after_s < GRACE_S, "SIGTERM was enough"
    outcome = read_outcome(work)
    assert outcome is not None
    assert getattr(outcome, "kind", None) is FailureKind.CANCELLED, "it stopped in good order"
    stopped_at = recorded_step(work)
    checkpoints = [
        path for path in work.glob("checkpoints/checkpoint-*") if (path / "checkpoint_manifest.json").is_file()
    ]
    assert checkpoints
    fault.recovery_starts()
    again = scene.drive()
    assert again.wait() == 0, again.text
    repeated = scene.assert_went_on(contained)
    assert scene.num_created() == 2
    fault.recovered(
        seen=f"the container stopped in good order at step {stopped_at}, gone after {gone_after_s:.1f} s (grace "
        f"{GRACE_S} s); the same command goes on bit for bit",
        repeated=repeated,
    )


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
    launch = Launch(
        spec=spec.model_copy(update={"profile": too_small}),
        spec_folder=tmp_path / "attempt",
        work_folder=tmp_path / "work",
        image=STAGE_IMAGE,
        labels={"rlhf.run_name": scene.name},
    )
    fault.recovery_starts()
    shows_imports = (DOCKER_COMMAND[0], "-X", "importtime", *DOCKER_COMMAND[1:])
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


def reap() -> str:
    """What `rlhf reap` prints."""
    command = [sys.executable, "-m", "flows.cli", "reap"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=180).stdout


def test_the_reaper_takes_only_what_nobody_works_with(scene: Scene, contained: Trained, fault: Fault) -> None:
    fault.describe(
        "containers", "`rlhf reap` beside an abandoned, a locked, a live and a foreign container", parts="Docker"
    )
    sleep = ["python", "-c", "import time; time.sleep(600)"]
    foreign = scene.client.containers.run(STAGE_IMAGE, sleep, detach=True, init=True, network_mode="none")
    try:
        driven, container = scene.drive_to_step(8)
        slowed(container)
        assert "left alone, its owner lives" in line_of(reap(), container)
        driven.kill()
        with (scene.work.with_name(f"{scene.work.name}.lock")).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert "left alone, another run has taken it over" in line_of(reap(), container)
        container.reload()
        assert container.status == "running"
        at_full_speed(container)
        fault.recovery_starts()
        assert line_of(reap(), container).endswith("running: stopped and removed")
        assert scene.containers() == []
        outcome = read_outcome(scene.work)
        assert getattr(outcome, "kind", None) is FailureKind.CANCELLED, f"{OUTCOME_FILE}: it stopped in good order"
        foreign.reload()
        assert foreign.status == "running"
        assert foreign.name not in reap()
    finally:
        foreign.remove(force=True)
    fault.recovered(seen="the abandoned one is stopped in good order and removed; the other three are left alone")


def line_of(text: str, container: Container) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{container.name}: ")]
    return line


@pytest.fixture(scope="session")
def private_daemon(client: docker.DockerClient) -> Iterator[PrivateDaemon]:
    """A daemon that may be restarted, with the stage image; its path is short, as a socket's must be."""
    daemon = PrivateDaemon(Path(tempfile.mkdtemp(prefix="rlhf-dockerd-")))
    try:
        daemon.start(live_restore=True)
        daemon.load(STAGE_IMAGE)
        yield daemon
    except NoPrivateDaemonError as error:
        pytest.skip(f"NO DAEMON WAS RESTARTED: {error}")
    finally:
        daemon.remove()


@pytest.mark.parametrize("live_restore", [True, False], ids=["on", "off"])
def test_the_daemon_is_restarted(
    scene: Scene, private_daemon: PrivateDaemon, contained: Trained, fault: Fault, live_restore: bool
) -> None:
    setting = f"live-restore {'on' if live_restore else 'off'}"
    fault.describe("containers", f"restart of the Docker daemon, {setting}, in the middle of {REWARD}", parts="dockerd")
    private_daemon.restart(live_restore=live_restore)
    with private_daemon.client() as client:
        theirs = replace(scene, client=client, docker_host=private_daemon.url)
        driven, _ = theirs.drive_to_step(8)
        fault.recovery_starts()
        private_daemon.restart(live_restore=live_restore)
        assert driven.wait() == 0, driven.text
        scene.assert_exact(contained)
        assert theirs.containers() == []
    steps = recorded_steps(scene.work)
    if live_restore:
        assert [path.name for path in scene.attempts.iterdir()] == ["attempt-1"]
        assert len(steps) == len(set(steps))
        fault.recovered(seen="the container lives on, the same attempt follows it to its end", repeated="0 steps")
    else:
        failure = scene.failure(attempt=1)
        assert failure["kind"] == FailureKind.CONTAINER_LOST
        assert "the Docker daemon was away for" in failure["message"]
        fault.recovered(
            seen="tried again by itself from the checkpoint, bit for bit; says that the daemon was away, for how long, "
            "and took the stage with it",
            repeated=scene.repeated(),
        )
