"""A Docker daemon that is restarted while a stage works; it is one of the tests' own."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest
from contained import REWARD, STAGE_IMAGE, Scene, Trained
from fault_rows import Fault
from private_daemon import NoPrivateDaemonError, PrivateDaemon
from tiny_project import recorded_steps

from containers.contracts.outcome import FailureKind

pytestmark = [pytest.mark.slow, pytest.mark.docker]


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
