"""A daemon that is away for a moment swallows no signal; restarts of a real one are fault rows."""

from typing import Any

import docker
import pytest
import requests

from containers.launch.docker import container
from containers.launch.docker.container import ContainerProgram


class Container:
    """One whose daemon is away at first; it ends with SIGKILL."""

    id, name, attrs = "c0ffee", "stage", {"State": {"ExitCode": 0}}

    def __init__(self) -> None:
        self.status = "running"
        self.daemon_is_away = True
        self.sent: list[str] = []

    def reload(self) -> None:
        self._ask()
        if "SIGKILL" in self.sent:
            self.status = "exited"

    def kill(self, signal: str) -> None:
        self._ask()
        self.sent.append(signal)
        if self.status != "running":
            raise docker.errors.APIError("is not running")

    def _ask(self) -> None:
        if self.daemon_is_away:
            raise requests.exceptions.ConnectionError("daemon restarts")


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Container:
    monkeypatch.setattr(container, "INSPECT_S", 0.0)
    return Container()


def program_of(stage: Any) -> ContainerProgram:
    return ContainerProgram(stage, docker.DockerClient(base_url="unix:///nonexistent.sock", version="1.40"))


def test_a_signal_that_the_daemon_missed_is_sent_when_it_answers_again(stage: Container) -> None:
    program = program_of(stage)
    program.terminate()
    assert not program.ended()
    assert stage.sent == []
    stage.daemon_is_away = False
    assert not program.ended()
    assert stage.sent == ["SIGTERM"]
    stage.daemon_is_away = True
    program.kill()
    stage.daemon_is_away = False
    program.ended()
    assert program.ended()
    assert stage.sent == ["SIGTERM", "SIGKILL"]


def test_a_stage_is_asked_to_stop_once_however_often_it_is_said(stage: Container) -> None:
    """A second SIGTERM ends a training at once, in the middle of its save."""
    stage.daemon_is_away = False
    program = program_of(stage)
    for _ in range(3):
        program.terminate()
        program.ended()
    assert stage.sent == ["SIGTERM"]


def test_a_container_that_ended_by_itself_is_owed_no_signal(stage: Container) -> None:
    stage.daemon_is_away, stage.status = False, "exited"
    program = program_of(stage)
    program.terminate()
    program.ended()
    assert stage.sent == ["SIGTERM"]


def test_a_signal_that_the_daemon_answers_with_an_error_of_its_own_is_sent_again(stage: Container) -> None:
    stage.daemon_is_away = False
    response = requests.Response()
    response.status_code = 500
    troubles = [docker.errors.APIError("containerd is not up", response=response)]

    def kill(signal: str) -> None:
        if troubles:
            raise troubles.pop()
        stage.sent.append(signal)

    stage.kill = kill  # type: ignore[method-assign]
    program = program_of(stage)
    program.terminate()
    assert stage.sent == []
    assert not program.ended()
    assert stage.sent == ["SIGTERM"]
