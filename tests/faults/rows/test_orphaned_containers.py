"""Containers that lose their orchestrator: taken over by the next run, or stopped in good order; with a real daemon."""

import fcntl
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from contained import (
    DOCKER,
    REFERENCE_STORE,
    REWARD,
    STAGE_IMAGE,
    Scene,
    Trained,
    at_full_speed,
    said,
    slowed,
)
from docker.models.containers import Container
from fault_rows import Fault
from tiny_project import recorded_step, recorded_steps, wait_for

from containers.contracts.names import OUTCOME_FILE, StageName
from containers.contracts.outcome import FailureKind
from containers.launch.collect import read_outcome

pytestmark = [pytest.mark.slow, pytest.mark.docker]

GRACE_S = 30
JUDGE = StageName.EVALUATE_REWARD_MODEL


def test_kill_9_of_the_orchestrator_while_its_container_works(scene: Scene, contained: Trained, fault: Fault) -> None:
    fault.describe("containers", f"`kill -9` of the orchestrator while the container of {REWARD} works", parts="Docker")
    driven, container = scene.drive_to_step(8)
    driven.kill()
    slowed(container)
    container.reload()
    assert container.status == "running", "the container lives on"
    fault.recovery_starts()
    again = scene.drive()
    wait_for(lambda: "still runs" in said(again), of=again, what="the take-over")
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


def test_kill_9_of_the_orchestrator_while_a_stage_without_checkpoints_works(
    scene: Scene, contained: Trained, fault: Fault
) -> None:
    fault.describe("containers", f"`kill -9` of the orchestrator while the container of {JUDGE} works", parts="Docker")
    judged = scene.tiny.drive(JUDGE, "run.name=contained", f"run.store_dir=outputs/{REFERENCE_STORE}", *DOCKER)
    assert judged.wait() == 0, judged.text
    scene.tiny.copy_finished([REWARD], source=REFERENCE_STORE, target=scene.store)
    judging = replace(scene, stage=JUDGE)
    driven = judging.drive()
    (container,) = wait_for(judging.running, of=driven, what="the container")
    slowed(container, percent=5)
    driven.kill()
    fault.recovery_starts()
    again = judging.drive()
    wait_for(lambda: "still runs" in said(again), of=again, what="the take-over")
    at_full_speed(container)
    assert again.wait() == 0, again.text
    assert scene.tiny.content_of(JUDGE, scene.name) == scene.tiny.content_of(JUDGE, "contained")
    assert (judging.num_created(), judging.containers()) == (1, [])
    fault.recovered(
        seen=f"the same command goes on with the container ({judging.num_created()} container in all) and says so; its "
        "artifact has the same content as the undisturbed run's"
    )


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


def reap() -> str:
    """What `rlhf reap` prints."""
    command = [sys.executable, "-m", "flows.cli.main", "reap"]
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
