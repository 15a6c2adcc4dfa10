"""What a stage's death looks like from outside: killed, stopped, lost or out of memory, and never confused."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from containers.contracts.outcome import FailureKind
from containers.launch.base import LaunchRequest, StageExit
from containers.launch.failures.classify import classify
from tests.unit.factories.launch_factory import Watcher, make_profile

pytestmark = pytest.mark.docker

RunStage = Callable[..., tuple[StageExit, LaunchRequest]]
Names = Callable[[], list[str]]

EATER = "x = []\nwhile True: x.append(bytearray(16 * 1024**2))"
CHILD_EATER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {EATER!r}]); sys.exit(3)"
SAVES_ON_SIGTERM = """
import signal, sys, time
def save(*_):
    open("saved", "w").write("state")
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
print("up")
time.sleep(60)
"""


def test_a_program_that_dies_of_a_signal_shows_it(run: RunStage) -> None:
    stage_exit, _ = run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (stage_exit.exit_code, stage_exit.signal) == (139, signal.SIGSEGV)


@pytest.mark.parametrize(("program", "code"), [(EATER, 137), (CHILD_EATER, 3)], ids=["the program", "only a child"])
def test_a_memory_kill_is_told_from_other_deaths(run: RunStage, program: str, code: int) -> None:
    profile = make_profile(host_memory_gib=0.125)
    stage_exit, launch = run(program, profile=profile)
    failure = classify(launch.spec, stage_exit, None)
    assert failure is not None
    assert (stage_exit.exit_code, stage_exit.oom_killed) == (code, True)
    assert failure.kind is FailureKind.OUT_OF_HOST_MEMORY
    assert "0.125 GiB" in failure.message


def test_a_kill_from_outside_is_no_memory_kill(run: RunStage, client: docker.DockerClient, name: str) -> None:
    def kill(line: str) -> None:
        client.containers.get(name).kill()

    stage_exit, launch = run("print('up'); import time; time.sleep(60)", on_line=kill)
    failure = classify(launch.spec, stage_exit, None)
    assert failure is not None
    assert failure.kind is FailureKind.CONTAINER_LOST
    assert "137, not out of memory" in failure.message


def test_a_container_that_is_removed_under_us_is_lost(run: RunStage, client: docker.DockerClient, name: str) -> None:
    def remove(line: str) -> None:
        client.containers.get(name).remove(force=True)

    stage_exit, launch = run("print('up'); import time; time.sleep(60)", on_line=remove)
    failure = classify(launch.spec, stage_exit, None)
    assert stage_exit.lost or stage_exit.exit_code == 137
    assert failure is not None
    assert failure.kind is FailureKind.CONTAINER_LOST


def test_a_stage_is_stopped_at_its_time_out_and_may_save_first(run: RunStage, names: Names) -> None:
    stage_exit, launch = run(SAVES_ON_SIGTERM, timeout_s=2)
    failure = classify(launch.spec, stage_exit, None)
    assert stage_exit.timed_out
    assert 2 <= stage_exit.duration_s < 8
    assert (launch.work_folder / "saved").read_text() == "state"
    assert failure is not None
    assert failure.kind is FailureKind.TIMED_OUT
    assert names() == []


def test_a_stage_that_ignores_sigterm_is_killed_after_the_grace(run: RunStage) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
    stage_exit, _ = run(program, timeout_s=1, grace_s=2)
    assert (stage_exit.exit_code, stage_exit.timed_out) == (137, True)
    assert 3 <= stage_exit.duration_s < 8


def test_cancel_stops_the_container(run: RunStage, names: Names) -> None:
    watcher = Watcher()
    threading.Timer(1.5, lambda: setattr(watcher, "stop", True)).start()
    stage_exit, launch = run(SAVES_ON_SIGTERM, watcher=watcher)
    failure = classify(launch.spec, stage_exit, None)
    assert stage_exit.cancelled
    assert failure is not None
    assert failure.kind is FailureKind.CANCELLED
    assert names() == []


def test_an_interrupt_stops_the_stage_in_good_order_and_leaves_no_container(
    tmp_path: Path, run: RunStage, names: Names
) -> None:
    def interrupt(line: str) -> None:
        if line == "up":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(SAVES_ON_SIGTERM, on_line=interrupt)
    assert names() == []
    assert (tmp_path / "work" / "saved").is_file()


def test_an_error_of_a_callback_leaves_no_container(run: RunStage, names: Names) -> None:
    def fail(line: str) -> None:
        raise ZeroDivisionError("the caller's own mistake")

    with pytest.raises(ZeroDivisionError):
        run(SAVES_ON_SIGTERM, on_line=fail)
    assert names() == []


def test_too_little_shared_memory_is_named_as_such(run: RunStage) -> None:
    """64 MiB of /dev/shm, and a data loader that hands batches of 32 MiB to the main process."""
    program = """
import torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return torch.zeros(8 * 1024**2)
for batch in DataLoader(Rows(), batch_size=1, num_workers=2, prefetch_factor=4): pass
"""
    profile = make_profile(shm_size_gib=0.0625)
    stage_exit, launch = run(program, profile=profile)
    failure = classify(launch.spec, stage_exit, None)
    assert failure is not None
    assert failure.kind is FailureKind.SHM_EXHAUSTED, failure.evidence
    assert "64 MiB" in failure.message
    assert "shm_size_gib" in failure.message
