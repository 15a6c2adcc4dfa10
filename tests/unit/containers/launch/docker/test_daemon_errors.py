"""The daemon's own words become an error that says what to do; each text is real."""

import os
import subprocess
import sys
from pathlib import Path

import docker
import pytest
import requests

from containers.contracts.outcome import FailureKind
from containers.launch.base import (
    CreateRefusedError,
    DaemonInfrastructureError,
    DaemonUnreachableError,
    GpuUnavailableError,
    ImageMissingError,
    InputUnusableError,
    LaunchError,
    NameTakenError,
)
from containers.launch.docker.errors import launch_error
from containers.launch.docker.runtime import connect
from tests.unit.factories.launch_factory import make_launch, make_profile, make_spec

# Bridge and memlock texts were seen on dockerd 20.10.24; the others are from its sources and from reports.
TEXTS = [
    (
        409,
        'Conflict. The container name "/rlhf-x" is already in use by container "3cb260671a9b". You have to remove (or '
        "rename) that container to be able to reuse that name.",
        NameTakenError,
        FailureKind.MISSING_PREREQUISITE,
    ),
    (
        500,
        'could not select device driver "" with capabilities: [[gpu]]',
        GpuUnavailableError,
        FailureKind.MISSING_PREREQUISITE,
    ),
    (
        400,
        'invalid mount config for type "bind": bind source path does not exist: /nowhere',
        InputUnusableError,
        FailureKind.MISSING_PREREQUISITE,
    ),
    (
        500,
        "failed to create endpoint x on network bridge: adding interface veth1 to bridge docker0 failed: could not "
        "find bridge docker0: route ip+net: no such network interface",
        DaemonInfrastructureError,
        FailureKind.CONTAINER_LOST,
    ),
    (
        500,
        "mkdir /var/lib/docker/overlay2/x: no space left on device",
        DaemonInfrastructureError,
        FailureKind.CONTAINER_LOST,
    ),
    (400, "Unknown runtime specified nvidia", CreateRefusedError, FailureKind.MISSING_PREREQUISITE),
]


@pytest.mark.parametrize(("status", "text", "expected", "kind"), TEXTS)
def test_the_daemons_words_are_classified(
    tmp_path: Path, status: int, text: str, expected: type[LaunchError], kind: FailureKind
) -> None:
    response = requests.Response()
    response.status_code = status
    launch = make_launch(tmp_path, make_spec(profile=make_profile(num_gpus=2, num_processes=2, precision="bf16")))
    error = launch_error(docker.errors.APIError("error", response=response, explanation=text), launch)
    assert type(error) is expected
    assert error.kind is kind
    assert text in str(error)


def test_a_missing_image_and_a_broken_connection_are_told_apart(tmp_path: Path) -> None:
    launch = make_launch(tmp_path, make_spec(), image="rlhf-stage:gpu")
    missing = launch_error(docker.errors.ImageNotFound("No such image"), launch)
    assert type(missing) is ImageMissingError
    assert "rlhf-stage:gpu" in str(missing)
    assert "make image" in str(missing)
    assert type(launch_error(requests.ConnectionError("aborted"), launch)) is DaemonUnreachableError


def test_without_a_daemon_the_message_says_how_to_get_one_or_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(DaemonUnreachableError, match=r"systemctl start docker(.|\n)*--set runtime\.kind=process"):
        connect()


@pytest.mark.waits
def test_importing_the_wall_imports_neither_torch_nor_prefect() -> None:
    program = (
        "import sys; import containers.launch.docker.runtime, containers.launch.process, containers.launch.collect; "
        "print([m for m in ('torch', 'transformers', 'prefect', 'mlflow') if m in sys.modules])"
    )
    project = str(Path(__file__).resolve().parents[5])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": project},
    )
    assert done.stdout.strip() == "[]"
