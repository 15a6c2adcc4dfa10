"""Stand-ins for what a unit test may not use: the GPUs and the Docker daemon of this machine."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.docker_daemon import FakeDaemon


@pytest.fixture
def smi(project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """`nvidia-smi` is the one in tests/fakes, and NVML cannot be loaded; FAKE_SMI says how the tool behaves."""
    broken = tmp_path_factory.mktemp("no-nvml")
    (broken / "libnvidia-ml.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(broken))
    monkeypatch.setenv("PATH", f"{project / 'tests' / 'fakes'}{os.pathsep}{os.environ['PATH']}")
    return monkeypatch


@pytest.fixture(scope="session")
def nvml_library(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with an NVML that answers what the file at FAKE_NVML says, built from tests/fakes/nvml.c."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here, so no NVML can be built to ask: install gcc")
    folder = tmp_path_factory.mktemp("nvml")
    command = [compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", project / "tests" / "fakes" / "nvml.c"]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def machine(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make this machine the one that the text describes, in the form that tests/fakes/nvml.c explains."""

    def describe(text: str) -> None:
        (tmp_path / "machine.txt").write_text(text, encoding="utf-8")
        monkeypatch.setenv("FAKE_NVML", str(tmp_path / "machine.txt"))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))

    return describe


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
