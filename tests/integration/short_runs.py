"""A short run in a folder of its own, started through the real command; for tests of what a user does and sees."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from flows.demo.rows import write_demo_data
from flows.servers.local import ServerSettings, local_servers

CONFIG = "configs/runs/short.yaml"
# No daemon and no hub answers, whatever this machine has; rich must not wrap what is searched for.
ENVIRONMENT = {"DOCKER_HOST": "unix:///nonexistent.sock", "HF_ENDPOINT": "http://127.0.0.1:9", "COLUMNS": "400"}


def prepare(folder: Path, project: Path) -> Path:
    """A project folder with a short run and its data; the folder."""
    shutil.copytree(project / "configs", folder / "configs")
    config = yaml.safe_load((project / "configs/runs/demo.yaml").read_text(encoding="utf-8"))
    config["runtime"] = {"kind": "process"}
    config["tracking"] = {"prefect_port": 0, "mlflow_port": 0}
    config["train_sft"]["schedule"] = {"max_steps": 2000, "eval_steps": 500}
    write_config(folder, config)
    write_demo_data(folder / "outputs/demo/data")
    return folder


@contextmanager
def prepare_with_servers(folder: Path, project: Path) -> Iterator[Path]:
    """The same with Prefect and MLflow running, which every run in the folder uses, and whose login it finds there."""
    prepare(folder, project)
    with (
        local_servers(ServerSettings(state_dir=folder / "outputs" / ".servers"), say=lambda text: None),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.delenv("PREFECT_API_AUTH_STRING")  # else tests of other servers would have it, as long as these run
        yield folder


def write_config(folder: Path, config: object) -> None:
    (folder / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def read_config(folder: Path) -> dict[str, dict[str, object]]:
    config = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    assert isinstance(config, dict)
    return config


def rlhf(folder: Path, command: str, *changes: str) -> subprocess.CompletedProcess[str]:
    """The command with `--set` for each change, run to its end."""
    ended = subprocess.run(
        command_line(command, *changes),
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in ended.stdout + ended.stderr
    return ended


def start(folder: Path, *changes: str, command: str = "run") -> subprocess.Popen[str]:
    """The command as leader of a process group, both outputs in one pipe; `end` belongs into a `finally`."""
    return subprocess.Popen(
        command_line(command, *changes),
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end(running: subprocess.Popen[str]) -> None:
    """Kill what a failed test left."""
    if running.poll() is None:
        running.kill()
    running.communicate()


def read_until(running: subprocess.Popen[str], sign: str) -> str:
    """What the run says, up to the line with `sign`."""
    assert running.stdout is not None
    said = ""
    for line in running.stdout:
        said += line
        if sign in line:
            return said
    raise AssertionError(f"The run ended before it said {sign!r}:\n{said}")


def wait_for_log(running: subprocess.Popen[str], store: Path, *, stage: str, sign: str) -> None:
    """Wait until a log of the stage has a match of `sign`."""
    deadline = time.monotonic() + 240
    while not any(re.search(sign, log.read_text()) for log in store.glob(f"attempts/{stage}/*/*/stage.log")):
        assert running.poll() is None, running.stdout and running.stdout.read()
        assert time.monotonic() < deadline, f"{sign!r} did not come"
        time.sleep(0.1)


def command_line(command: str, *changes: str) -> list[str]:
    overrides = [word for change in changes for word in ("--set", change)]
    return [sys.executable, "-m", "flows.cli.main", command, "-c", CONFIG, *overrides]


def failures(checked: subprocess.CompletedProcess[str]) -> str:
    """The failed rows of `rlhf check`, each with its advice."""
    lines = checked.stdout.splitlines()
    found = [f"{line}\n{after}" for line, after in zip(lines, [*lines[1:], ""], strict=True) if "FAILURE" in line]
    return "\n".join(found)


def traces(folder: Path) -> set[str]:
    """Everything in `outputs` beside the data of the demo."""
    outputs = folder / "outputs"
    return {str(path.relative_to(outputs)) for path in outputs.rglob("*") if "data" not in path.parts} - {"demo"}


def processes_in(folder: Path) -> list[str]:
    """Command lines of the processes that work in the folder, or whose command line names it."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and (
                str(folder) in words or Path(process.cwd()).is_relative_to(folder)
            ):
                found.append(words)
        except (psutil.Error, OSError):
            continue
    return found
