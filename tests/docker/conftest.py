"""Tests with a real Docker daemon and the real stage image; skipped, loudly, where one of them is missing."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from containers.launch.docker import connect, stage_image_digest
from containers.launch.runtime import LaunchError

# The launch factory is shared with the unit tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "launch"))

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
