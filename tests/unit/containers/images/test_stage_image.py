"""The image holds what pyproject.toml says, once, and nothing of the orchestrator."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from containers.launch.gpus.drivers import VLLM

IMAGES = Path(__file__).resolve().parents[4] / "containers" / "images"
PYPROJECT = IMAGES.parents[1] / "pyproject.toml"


def requirements(pyproject: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(IMAGES / "stage_requirements.py"), str(pyproject)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_image_installs_the_stages_extra_and_the_contracts_package_and_nothing_else() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    lines = requirements(PYPROJECT).stdout.splitlines()
    pydantic = [line for line in project["dependencies"] if line.startswith("pydantic")]
    assert lines == pydantic + project["optional-dependencies"]["stages"]
    assert not [line for line in lines if line.startswith(("prefect", "mlflow", "docker", "fastapi"))]


def test_a_pyproject_without_the_contracts_package_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["rich"]\n[project.optional-dependencies]\nstages = ["torch"]\n'
    )
    done = requirements(tmp_path / "pyproject.toml")
    assert done.returncode != 0
    assert "pydantic" in done.stderr


@pytest.mark.parametrize("script", ["build.sh", "make_cpu_base.sh"])
def test_an_unknown_option_is_refused_with_the_known_ones(script: str) -> None:
    done = subprocess.run([str(IMAGES / script), "--tga", "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--tag" in done.stderr


@pytest.mark.parametrize(
    ("options", "extras"),
    [
        (["--elsewhere"], f"{VLLM}\n"),
        (["--elsewhere", "--without", "vllm"], "\n"),
        (["--elsewhere", "--with", "vllm==0.30.0"], "vllm==0.30.0\n"),
        (["--base", "rlhf-base:cpu"], "\n"),
        (["--base", "rlhf-base:cpu", "--with", "einops"], "einops\n"),
    ],
)
def test_vllm_is_installed_where_it_fits_and_nothing_else_was_said(
    tmp_path: Path, options: list[str], extras: str
) -> None:
    """No CUDA base can be pulled here; the file that pip would install from is what is looked at."""
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\nfor last; do :; done\n[ "$1" = build ] && cp "$last/extras.txt" "{tmp_path}"\nexit 0\n'
    )
    docker.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable}
    done = subprocess.run(
        [str(IMAGES / "build.sh"), *options], capture_output=True, text=True, check=True, env=environment
    )
    assert (tmp_path / "extras.txt").read_text() == extras
    assert ("with vLLM" in done.stdout) is ("vllm" in extras)
    assert ("without vLLM" in done.stdout) is ("vllm" not in extras)


def test_the_image_build_says_that_no_daemon_answers(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    done = subprocess.run(
        [str(IMAGES / "build.sh"), "--tag", "x"], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 1
    assert "no Docker daemon answers" in done.stderr
