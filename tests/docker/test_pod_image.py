"""The image of Kubernetes pods under their limits: it holds the whole command, and a forgotten /dev/shm is refused."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.docker

TAG = "rlhf-pod:test"
Ran = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def pod_image(stage_image: str, project: Path) -> Iterator[str]:
    """Built from the stage image; removed afterwards."""
    build = [str(project / "containers/kubernetes/build.sh"), "--base", stage_image, "--tag", TAG]
    built = subprocess.run(
        build, env={**os.environ, "DOCKER_BUILDKIT": "0"}, capture_output=True, text=True, check=False, timeout=500
    )
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    yield TAG
    subprocess.run(["docker", "image", "rm", TAG], check=False, capture_output=True)


@pytest.fixture(scope="module")
def in_pod(pod_image: str, project: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ran]:
    """Runs `rlhf` in a container as the template makes a pod: its user, root file system, volumes, no capability."""
    volume = tmp_path_factory.mktemp("volume")
    subprocess.run(["cp", "-r", str(project / "configs"), str(volume)], check=True)
    subprocess.run(["chmod", "-R", "a+rwX", str(volume)], check=True)
    volume.chmod(0o777)

    def run(*words: str, shm: str) -> Ran:
        limits = ["--read-only", "--tmpfs", "/tmp:exec,size=1g", "--user", "1000:1000", "--cap-drop", "ALL"]
        limits += ["--security-opt", "no-new-privileges", "--shm-size", shm, "--network", "none"]
        place = ["-v", f"{volume}:/srv/rlhf", "-w", "/srv/rlhf", "-e", "HOME=/tmp", "-e", "COLUMNS=200"]
        command = ["docker", "run", "--rm", *limits, *place, pod_image, "rlhf", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)

    return run


def test_the_check_runs_and_refuses_the_shared_memory_of_a_pod_without_a_volume_for_it(
    in_pod: Callable[..., Ran],
) -> None:
    made = in_pod("demo-data", shm="64m")
    assert made.returncode == 0, made.stderr
    wanted = ["--set", "runtime.kind=process", "--set", "gpu_profile.shm_size_gib=1"]
    forgotten = in_pod("check", "-c", "configs/runs/demo.yaml", *wanted, shm="64m")
    assert forgotten.returncode == 1, forgotten.stderr
    (row,) = (line for line in forgotten.stdout.splitlines() if "/dev/shm" in line and "64.0 MiB" in line)
    assert row.startswith("FAILURE")
    given = in_pod("check", "-c", "configs/runs/demo.yaml", *wanted, shm="1g")
    assert given.returncode == 0, given.stdout + given.stderr


def test_the_stages_are_those_of_the_project(in_pod: Callable[..., Ran]) -> None:
    planned = in_pod("plan", "-c", "configs/runs/demo.yaml", shm="64m")
    assert planned.returncode == 0, planned.stderr
    assert "train_policy" in planned.stdout
