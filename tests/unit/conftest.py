"""Stand-ins for what a unit test may not use: the GPUs and the Docker daemon of this machine."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.docker_daemon import FakeDaemon
from fakes.warm_rlhf import WarmRlhf

from containers.launch.gpus import inventory
from containers.launch.gpus.cards import GpuReport
from containers.launch.gpus.nvml import NoNvmlError, read_by_nvml

_answers: dict[tuple[str | None, ...], GpuReport | NoNvmlError] = {}


@pytest.fixture(autouse=True)
def this_machine_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML answers in a process of its own, which takes a quarter of a second; a pretended machine each time."""

    def ask(*, timeout_s: float) -> GpuReport:
        if "FAKE_NVML" in os.environ:
            return read_by_nvml(timeout_s=timeout_s)
        place = tuple(os.environ.get(name) for name in ("LD_LIBRARY_PATH", "PATH", "CUDA_VISIBLE_DEVICES"))
        if place not in _answers:
            try:
                _answers[place] = read_by_nvml(timeout_s=timeout_s)
            except NoNvmlError as error:
                _answers[place] = error
        answer = _answers[place]
        if isinstance(answer, NoNvmlError):
            raise answer
        return answer

    monkeypatch.setattr(inventory, "read_by_nvml", ask)


@pytest.fixture(scope="session")
def broken_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with an NVML that cannot be loaded."""
    folder = tmp_path_factory.mktemp("no-nvml")
    (folder / "libnvidia-ml.so.1").touch()
    return folder


@pytest.fixture
def smi(project: Path, broken_nvml: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """`nvidia-smi` is the one in tests/fakes, and NVML cannot be loaded; FAKE_SMI says how the tool behaves."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(broken_nvml))
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


@pytest.fixture(scope="session")
def warm_rlhf() -> Iterator[WarmRlhf]:
    """Run a command line in a process that has the imports behind it."""
    with WarmRlhf() as rlhf:
        yield rlhf
