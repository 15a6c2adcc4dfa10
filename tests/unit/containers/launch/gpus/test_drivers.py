"""A driver that cannot run the image's CUDA is told before gigabytes are downloaded, and before a run starts."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.machines import MACHINES

from containers.contracts.records import CheckFinding
from containers.launch.gpus.drivers import (
    NO_CUDA,
    VLLM,
    base_objections,
    driver_objection,
    installed_cuda,
    parsed_version,
    usual_packages,
)
from containers.launch.gpus.inventory import read_gpus
from tasks.checks.hardware import driver_finding

BASE = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"


@pytest.mark.parametrize(
    ("driver", "cuda", "runs"),
    [
        ("580.95.05", (13, 0), True),
        ("570.86.15", (13, 0), False),
        ("570.86.15", (12, 8), True),
        ("535.183.06", (12, 6), True),
        ("470.57.02", (12, 6), False),
        ("595.10", (12, 6), True),
        ("", (13, 0), True),
    ],
)
def test_each_cuda_needs_the_drivers_of_its_major_version(driver: str, cuda: tuple[int, int], runs: bool) -> None:
    problem, advice = driver_objection(driver, cuda)
    assert bool(problem) is not runs
    assert bool(advice) is not runs


def test_the_advice_names_the_driver_and_the_base_that_fits() -> None:
    problem, advice = driver_objection("550.54.15", (13, 0))
    assert problem == "driver 550.54.15 is too old for CUDA 13.0, which needs 580 or newer"
    assert advice == "Install driver 580 or newer, or build the image on a base with CUDA 12 (BASE_IMAGE=…-cuda12.…)."


def _finding(machine: Callable[[str], None], name: str, cuda: str) -> CheckFinding:
    machine(MACHINES[name])
    return driver_finding(read_gpus(timeout_s=20, kernel_log=Path("/dev/null")), cuda, "docker")


def test_the_check_compares_driver_and_image(machine: Callable[[str], None]) -> None:
    good = _finding(machine, "eight H100", "13.0")
    assert (good.verdict, good.found) == ("ok", "580.95.05 (runs CUDA up to 13.0)")
    old = _finding(machine, "eight A100, one with a corrupt infoROM", "13.0")
    assert old.verdict == "failure"
    assert "too old for CUDA 13.0" in old.found
    assert _finding(machine, "eight A100, one with a corrupt infoROM", "12.6").verdict == "ok"
    without = _finding(machine, "eight H100", NO_CUDA)
    assert without.verdict == "failure" and "built without CUDA" in without.found
    silent = _finding(machine, "eight H100", "")
    assert silent.verdict == "warning" and "make image" in silent.advice


def test_the_torch_here_is_known_without_importing_it() -> None:
    code = "import sys; from containers.launch.gpus.drivers import installed_cuda; print(installed_cuda()); "
    code += "assert 'torch' not in sys.modules"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == installed_cuda()
    assert installed_cuda() in ("", NO_CUDA) or parsed_version(installed_cuda()) is not None


def test_a_base_that_would_not_run_is_refused_by_its_name() -> None:
    (problem,) = base_objections(BASE, [], driver="550.54.15")
    assert problem.startswith("driver 550.54.15 is too old for CUDA 13.0")
    assert base_objections(BASE, ["vllm==0.29.0"], driver="580.95.05") == []
    assert base_objections("rlhf-base:cpu", ["vllm==0.29.0"], driver="") == []
    (other,) = base_objections(BASE.replace("13.0-", "12.6-"), ["vllm==0.29.0"], driver="550.54.15")
    assert "vLLM from the package index is built for CUDA 13" in other


@pytest.mark.parametrize(
    ("base", "packages"), [(BASE, [VLLM]), (BASE.replace("13.0-", "12.6-"), []), ("rlhf-base:cpu", [])]
)
def test_vllm_is_in_an_image_whose_cuda_its_build_fits(base: str, packages: list[str]) -> None:
    assert usual_packages(base) == packages
    assert base_objections(base, packages, driver="580.95.05") == []
    command = [sys.executable, "-m", "containers.launch.gpus.drivers", "--packages", base]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == packages


def test_the_build_of_the_image_asks_first(machine: Callable[[str], None]) -> None:
    machine(MACHINES["eight A100, one with a corrupt infoROM"])
    command = [sys.executable, "-m", "containers.launch.gpus.drivers", BASE]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "Install driver 580 or newer" in refused.stderr
    machine(MACHINES["eight H100"])
    assert subprocess.run(command, check=False).returncode == 0
