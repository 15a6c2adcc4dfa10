"""Containers whose orchestrator was killed with SIGKILL while they worked."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from containers.launch.base import LaunchRequest
from containers.launch.docker.runtime import DockerRuntime
from containers.launch.lease import LOCK_LABEL
from tasks.store.lock import lock_path
from tests.unit.factories.launch_factory import make_launch, make_spec

_HERE = Path(__file__).resolve()
_IMPORTED_FROM = (str(_HERE.parents[2]), str(_HERE.parent))


def attempt(folder: Path, image: str, number: int = 1, **changes: object) -> LaunchRequest:
    """An attempt at the same key in the same work folder, as `tasks.pipeline.attempt` makes it.

    Changes that are fields of a launch go there, all others into the spec.
    """
    of_launch = {name: changes.pop(name) for name in ("on_line", "watcher", "labels") if name in changes}
    spec = make_spec(**{"timeout_s": 120, "attempt": number, "run_id": f"run-{number}", **changes})
    values = {"spec_folder": folder / "specs" / f"attempt-{number}", "labels": lock_labels(folder), **of_launch}
    return make_launch(folder, spec, image=image, **values)


def lock_labels(folder: Path) -> dict[str, str]:
    """The label that names the lock of the work folder."""
    return {"rlhf.run_name": "test", LOCK_LABEL: str(lock_path((folder / "work").resolve()))}


def orphan(folder: Path, image: str, program: str) -> None:
    """Start the program as attempt 1 in a container; its orchestrator dies of SIGKILL at the first line of its log."""
    code = "import sys; sys.path[:0] = sys.argv[4:]; import orphans; orphans.run_and_die(*sys.argv[1:4])"
    command = [sys.executable, "-c", code, str(folder), image, program, *_IMPORTED_FROM]
    died = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert died.returncode == -signal.SIGKILL, died.stderr


def run_and_die(folder: str, image: str, program: str) -> None:
    """The orchestrator that dies; run in a process of its own."""

    def die(line: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    launch = attempt(Path(folder), image, on_line=die)
    DockerRuntime(command=("python", "-u", "-c", program)).run(launch)
