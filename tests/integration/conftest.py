"""What the tests with real servers share: an MLflow server, and project folders in which the real command runs."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from short_runs import prepare, prepare_with_servers

from flows.servers.commands import server_plan
from flows.servers.process import free_ports, health_problem, log_tail, start_process, stop_groups


class MlflowServer:
    """A server on its own SQLite file and a fixed port, so that it can be killed and come back."""

    def __init__(self, state_dir: Path) -> None:
        (self.port,) = free_ports(1)
        self.uri = f"http://127.0.0.1:{self.port}"
        self._plan = server_plan("mlflow", state_dir, self.port)
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._child = start_process(self._plan)
        deadline = time.monotonic() + 120
        while (problem := health_problem(f"{self.uri}/health")) is not None:
            assert self._child.poll() is None, f"MLflow ended:\n{log_tail(self._plan.log_path)}"
            assert time.monotonic() < deadline, f"{problem}\n{log_tail(self._plan.log_path)}"
            time.sleep(0.1)

    def stop(self) -> None:
        if self._child is not None:
            stop_groups([self._child.pid], children={self._child.pid: self._child})
            self._child = None


@pytest.fixture(scope="session")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        yield server.uri
    finally:
        server.stop()


@pytest.fixture
def mortal_mlflow(tmp_path: Path) -> Iterator[MlflowServer]:
    """A running server of one test's own, to be stopped and started again."""
    server = MlflowServer(tmp_path / "servers")
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def folder(tmp_path: Path, project: Path) -> Path:
    """A project folder of one test's own."""
    return prepare(tmp_path, project)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[Path]:
    """A project folder with servers, for runs that really start; each takes a `run.name` of its own."""
    with prepare_with_servers(tmp_path_factory.mktemp("served"), project) as folder:
        yield folder
