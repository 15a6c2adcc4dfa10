"""What the tests with real servers share: an MLflow server, and project folders in which the real command runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow_server import MlflowServer
from short_runs import prepare, prepare_with_servers


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
