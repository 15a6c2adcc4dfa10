"""Stand-ins for what a unit test may not use: the GPUs and the Docker daemon of this machine."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.docker_daemon import FakeDaemon


@pytest.fixture
def smi(project: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """`nvidia-smi` is the one in tests/fakes; FAKE_SMI says how it behaves."""
    monkeypatch.setenv("PATH", f"{project / 'tests' / 'fakes'}{os.pathsep}{os.environ['PATH']}")
    return monkeypatch


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """DOCKER_HOST leads to a daemon without images."""
    with FakeDaemon(tmp_path / "docker.sock") as fake:
        monkeypatch.setenv("DOCKER_HOST", fake.url)
        yield fake


@pytest.fixture
def no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DOCKER_HOST leads nowhere."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
