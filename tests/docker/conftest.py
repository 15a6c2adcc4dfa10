"""Tests with a real Docker daemon and the real stage image; skipped, loudly, where one of them is missing."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from containers.launch.arguments import container_name
from containers.launch.base import LaunchError, LaunchRequest, StageExit
from containers.launch.docker.runtime import DockerRuntime, connect, stage_image_digest
from tests.unit.factories.launch_factory import Watcher, make_launch, make_spec

STAGE_IMAGE = os.environ.get("RLHF_STAGE_IMAGE", "rlhf-stage:cpu")


@pytest.fixture(scope="session")
def stage_image() -> str:
    try:
        stage_image_digest(STAGE_IMAGE)
    except LaunchError as error:
        pytest.skip(f"NOTHING WAS TESTED WITH DOCKER: {error}")
    return STAGE_IMAGE


@pytest.fixture
def client(stage_image: str) -> Iterator[docker.DockerClient]:
    connected = connect()
    yield connected
    connected.close()


@pytest.fixture
def run(tmp_path: Path, stage_image: str) -> Callable[..., tuple[StageExit, LaunchRequest]]:
    """Runs a Python program as a stage; keywords that are no part of a launch change the spec."""

    def run_program(
        program: str, *, folder: Path = tmp_path, watcher: Watcher | None = None, grace_s: float = 10, **changes: Any
    ) -> tuple[StageExit, LaunchRequest]:
        launch_changes = {name: changes.pop(name) for name in ("labels", "on_line", "should_stop") if name in changes}
        spec = make_spec(**{"timeout_s": 120, **changes})
        launch = make_launch(folder, spec, watcher=watcher, image=stage_image, **launch_changes)
        return DockerRuntime(command=("python", "-c", program), stop_grace_s=grace_s).run(launch), launch

    return run_program


@pytest.fixture
def name() -> str:
    """Of the container in which the factory's spec runs."""
    return container_name(make_spec())


@pytest.fixture
def names(client: docker.DockerClient, name: str) -> Callable[[], list[str]]:
    """Asks which containers of that name there are, running or not."""
    return lambda: [str(container.name) for container in client.containers.list(all=True, filters={"name": name})]
