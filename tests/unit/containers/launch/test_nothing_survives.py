"""No process of a stage outlives its end, wherever it hides; with a PID namespace and without."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.hardware import BatchPlan
from containers.launch import process
from containers.launch.base import StageExit
from containers.launch.leftovers import kill_processes_with
from containers.launch.process import ProcessRuntime
from tests.unit.factories.launch_factory import Watcher, make_launch, make_spec
from tests.unit.factories.stage_processes import alive, command_of, namespaces_of, rank_of

pytestmark = pytest.mark.waits

GRACE_S = 1.0

# As torchrun and its ranks: each rank has a session of its own, catches SIGUSR1, and computes in C with the interpreter
# locked, so that no other signal reaches it. One leaves a grandchild that closes everything and whose parent ends.
RANKS = """
import ctypes, faulthandler, os, signal, subprocess, sys, time
rank = os.environ.get("LOCAL_RANK")
if rank is None:
    ranks = [
        subprocess.Popen([sys.executable, __file__], env={**os.environ, "LOCAL_RANK": str(i), "RANK": str(i)},
                         start_new_session=True)
        for i in range(int(sys.argv[1]))
    ]
    print("up", flush=True)
    sys.exit(max(rank.wait() for rank in ranks))
faulthandler.register(signal.SIGUSR1, all_threads=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 100)
        time.sleep(1000)
    os._exit(0)
def hangs_in_a_collective():
    os.write(1, f"rank {rank} is up\\n".encode())  # at once: ranks share the log
    while True:
        ctypes.PyDLL(None).sleep(100_000)
hangs_in_a_collective()
"""


def run_ranks(
    tmp_path: Path, num_ranks: int, *, act: Callable[[list[int]], None] = lambda pids: None, **changes: Any
) -> tuple[StageExit, float]:
    """Run ranks that hang. Returns their end, and how many seconds after all ranks were up, or after `act`, it came.

    Args:
        act: called once all ranks are up, with the process ids of the stage.
    """
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)
    watcher = Watcher()
    up_at: list[float] = []

    def look() -> bool:
        if not up_at and sum("is up" in line for line in watcher.lines) == num_ranks:
            up_at.append(time.monotonic())
            found = alive(tmp_path)
            is_confined = namespaces_of(pid for pid in found if rank_of(pid)) != namespaces_of([os.getpid()])
            assert is_confined == ("--confine" in process.supervised(command, events=tmp_path))
            act(found)
        return watcher.stop and bool(up_at)

    watcher.stop = changes.pop("cancel", False)
    batch = BatchPlan(
        global_batch_size=num_ranks, per_device_batch_size=1, num_processes=num_ranks, gradient_accumulation_steps=1
    )
    spec = make_spec(runtime="process", **{"timeout_s": 60, "batch": batch, **changes})
    command = (sys.executable, str(program), str(num_ranks))
    launch = make_launch(tmp_path, spec, watcher=watcher, should_stop=look)
    stage_exit = ProcessRuntime(command=command, stop_grace_s=GRACE_S).run(launch)
    return stage_exit, time.monotonic() - up_at[0]


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_ranks_that_hang_in_c_are_dead_when_a_cancel_returns(tmp_path: Path, boundary: str, num_ranks: int) -> None:
    stage_exit, ended_after_s = run_ranks(tmp_path, num_ranks, cancel=True)
    assert not alive(tmp_path)
    assert stage_exit.cancelled and not stage_exit.lost
    assert ended_after_s < GRACE_S + 5


def test_they_are_dead_after_a_time_out(tmp_path: Path, boundary: str) -> None:
    stage_exit, _ = run_ranks(tmp_path, 2, timeout_s=8)
    assert not alive(tmp_path)
    assert stage_exit.timed_out and not stage_exit.lost


def test_they_are_dead_after_a_stall_and_each_left_its_stacks(tmp_path: Path, boundary: str) -> None:
    num_ranks = 3
    stage_exit, _ = run_ranks(tmp_path, num_ranks, silence_limit_s=6.0)
    assert not alive(tmp_path)
    assert stage_exit.stalled and not stage_exit.lost
    log = "\n".join(stage_exit.log_tail)
    assert log.count("in hangs_in_a_collective") == num_ranks, log
    for rank in range(num_ranks):
        assert f"rank {rank}:" in log


def test_they_are_dead_when_their_program_was_killed(tmp_path: Path, boundary: str) -> None:
    def kill_the_program(pids: list[int]) -> None:
        programs = [pid for pid in pids if re.match(r"\S+ \S+ranks\.py", command_of(pid)) and not rank_of(pid)]
        os.kill(programs[0], signal.SIGKILL)

    stage_exit, _ = run_ranks(tmp_path, 2, act=kill_the_program)
    assert not alive(tmp_path)
    assert (stage_exit.exit_code, stage_exit.signal, stage_exit.lost) == (137, signal.SIGKILL, False)


@pytest.fixture
def token_kills(boundary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a namespace, what a dead supervisor leaves is found by its token alone."""
    if boundary == "subreaper":
        monkeypatch.setattr("containers.launch.process.kill_processes_with", kill_processes_with)


@pytest.mark.usefixtures("token_kills")
def test_they_are_dead_when_the_supervisor_itself_was_killed(tmp_path: Path) -> None:
    def kill_the_supervisor(pids: list[int]) -> None:
        os.kill(min(pid for pid in pids if "containers.harness.supervisor" in command_of(pid)), signal.SIGKILL)

    stage_exit, _ = run_ranks(tmp_path, 2, act=kill_the_supervisor)
    assert not alive(tmp_path)
    assert stage_exit.exit_code == 137


@pytest.mark.usefixtures("token_kills")
def test_a_stopped_supervisor_holds_nothing_up(tmp_path: Path) -> None:
    def stop_the_supervisor(pids: list[int]) -> None:
        os.kill(min(pid for pid in pids if "containers.harness.supervisor" in command_of(pid)), signal.SIGSTOP)

    stage_exit, ended_after_s = run_ranks(tmp_path, 2, act=stop_the_supervisor, cancel=True)
    assert not alive(tmp_path)
    assert stage_exit.cancelled
    assert ended_after_s < GRACE_S + 10
