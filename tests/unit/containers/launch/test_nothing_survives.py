"""No process of a stage outlives its end, wherever it hides; with a PID namespace and without."""

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.hardware import BatchPlan
from containers.contracts.names import EVENTS_FILE, TOKEN_VARIABLE
from containers.harness.pid_namespace import namespace_is_allowed
from containers.harness.supervisor import OOM_SCORE, Supervisor
from containers.launch import process
from containers.launch.arguments import supervised
from containers.launch.base import CreateRefusedError, StageExit
from containers.launch.leftovers import folder_token, kill_processes_with, new_token, processes_with, sole_program
from containers.launch.process import ProcessRuntime
from tests.unit.factories.launch_factory import Watcher, make_launch, make_spec

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


@pytest.fixture(params=["namespace", "subreaper"])
def boundary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By what the supervisor ends a stage; the search by token only looks here, so that it hides nothing."""
    monkeypatch.setattr("containers.launch.process.kill_processes_with", lambda token, limit_s: processes_with(token))
    if request.param == "namespace" and not namespace_is_allowed():
        pytest.skip("PID NAMESPACE NOT TESTED: the kernel allows none here.")
    if request.param == "subreaper":

        def without_namespace(command: tuple[str, ...], *, events: Path) -> tuple[str, ...]:
            return tuple(word for word in supervised(command, events=events) if word != "--confine")

        monkeypatch.setattr("containers.launch.process.supervised", without_namespace)
    return str(request.param)


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


SAVES_SLOWLY = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(3)
    pathlib.Path("saved").write_text("state")
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(100)
"""
ORCHESTRATOR = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from tests.unit.factories.launch_factory import make_launch, make_spec
from containers.launch.process import ProcessRuntime
launch = make_launch(Path({folder!r}), make_spec(runtime="process"), on_line=lambda line: print(line, flush=True))
ProcessRuntime(command=(sys.executable, "-c", {program!r})).run(launch)
"""


def start_orchestrator(folder: Path, program: str) -> "subprocess.Popen[str]":
    """An orchestrator in a process of its own, whose stage is up."""
    source = ORCHESTRATOR.format(tests=str(Path(__file__).resolve().parents[4]), folder=str(folder), program=program)
    orchestrator = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert orchestrator.stdout is not None
    while "up" not in (line := orchestrator.stdout.readline()):
        assert line, "it ended before its stage was up"
    return orchestrator


def end(orchestrator: "subprocess.Popen[str]") -> None:
    """`kill -9`."""
    orchestrator.kill()
    orchestrator.communicate()


def test_a_stage_whose_orchestrator_is_killed_saves_its_state_and_the_next_one_waits_for_that(tmp_path: Path) -> None:
    orchestrator = start_orchestrator(tmp_path, SAVES_SLOWLY)
    end(orchestrator)
    watcher = Watcher()
    program = "import pathlib; print('saved' if pathlib.Path('saved').exists() else 'twin')"
    launch = make_launch(tmp_path, make_spec(runtime="process"), watcher=watcher)
    stage_exit = ProcessRuntime(command=(sys.executable, "-c", program)).run(launch)
    assert stage_exit.log_tail[-1] == "saved"
    assert "is saving its state" in watcher.lines[0]
    assert not alive(tmp_path)


HEARS_NOTHING = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(1000)
"""


def test_orchestrator_and_supervisor_killed_together_leave_nothing_in_a_namespace(tmp_path: Path) -> None:
    if not namespace_is_allowed():
        pytest.skip("PID NAMESPACE NOT TESTED: the kernel allows none here.")
    orchestrator = start_orchestrator(tmp_path, HEARS_NOTHING)
    supervisor = min(pid for pid in alive(tmp_path) if "containers.harness.supervisor" in command_of(pid))
    os.kill(supervisor, signal.SIGSTOP)  # it must not see its orchestrator's end
    end(orchestrator)
    assert len(alive(tmp_path)) > 1
    os.kill(supervisor, signal.SIGKILL)
    assert_dead_within(5.0, tmp_path)


# A supervisor with a grace of a second, whose parent prints when the program is up.
ORPHANED = """
import subprocess, sys
code = "import containers.contracts.stop_grace as grace; grace.SHORTEST_S = 1.0; "
code += "from containers.harness.supervisor import main; raise SystemExit(main())"
supervisor = subprocess.Popen([sys.executable, "-c", code, *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
print(supervisor.stdout.readline(), end="", flush=True)
supervisor.wait()
"""


@pytest.mark.parametrize("how", [["--confine"], []])
def test_a_program_that_hears_no_sigterm_dies_after_the_grace_when_its_orchestrator_is_dead(
    tmp_path: Path, how: list[str]
) -> None:
    token = new_token(tmp_path / "work")
    command = [sys.executable, "-c", ORPHANED, *how, "--", sys.executable, "-c", HEARS_NOTHING]
    orchestrator = subprocess.Popen(
        command, env={**os.environ, TOKEN_VARIABLE: token}, cwd=Path(__file__).parents[4], stdout=subprocess.PIPE
    )
    assert orchestrator.stdout is not None
    assert orchestrator.stdout.readline() == b"up\n"
    orchestrator.kill()
    orchestrator.communicate()
    assert alive(tmp_path)
    assert_dead_within(10.0, tmp_path)


def test_a_sigterm_before_there_is_a_program_is_passed_on_once_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "_program", lambda self: list(programs))
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("containers.harness.supervisor._send", lambda pid, number: sent.append((pid, number)))
    supervisor = Supervisor(["true"], events=tmp_path / EVENTS_FILE, confine=False, parent=os.getppid())
    programs: list[int] = []
    supervisor._answer(signal.SIGTERM)
    assert sent == []
    programs = [os.getpid()]
    for _ in range(3):
        supervisor._answer(None)
    assert sent == [(os.getpid(), signal.SIGTERM)]


def test_a_second_sigterm_does_not_reach_a_program_that_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(Supervisor, "_program", lambda self: [os.getpid()])
    monkeypatch.setattr("containers.harness.supervisor._send", lambda pid, number: sent.append(number))
    supervisor = Supervisor(["true"], events=tmp_path / EVENTS_FILE, confine=False, parent=os.getppid())
    for _ in range(3):
        supervisor._answer(signal.SIGTERM)
    assert sent == [signal.SIGTERM]


def test_where_memory_runs_out_the_kernel_takes_the_stage_before_those_who_started_it(
    tmp_path: Path, boundary: str
) -> None:
    watcher = Watcher()
    program = "print('score', open('/proc/self/oom_score_adj').read().strip())"
    launch = make_launch(tmp_path, make_spec(runtime="process"), watcher=watcher)
    ProcessRuntime(command=(sys.executable, "-c", program)).run(launch)
    assert f"score {OOM_SCORE}" in watcher.lines
    assert int(Path("/proc/self/oom_score_adj").read_text()) < OOM_SCORE


def assert_dead_within(limit_s: float, tmp_path: Path) -> None:
    deadline = time.monotonic() + limit_s
    while alive(tmp_path):
        assert time.monotonic() < deadline, [command_of(pid) for pid in alive(tmp_path)]
        time.sleep(0.05)


def test_who_waits_for_such_a_program_can_be_cancelled(tmp_path: Path) -> None:
    orchestrator = start_orchestrator(tmp_path, SAVES_SLOWLY)
    end(orchestrator)
    watcher = Watcher(stop=True)
    stage_exit = ProcessRuntime().run(make_launch(tmp_path, make_spec(runtime="process"), watcher=watcher))
    assert (stage_exit.cancelled, stage_exit.exit_code) == (True, None)
    assert_dead_within(30.0, tmp_path)
    assert (tmp_path / "work" / "saved").exists(), "the one that was waited for could save"


def test_what_a_killed_supervisor_left_is_ended_before_the_next_program_starts(tmp_path: Path) -> None:
    """Orchestrator and supervisor killed together, and no namespace: nobody is left who would end the program."""
    work = tmp_path / "work"
    work.mkdir()
    left = subprocess.Popen(["sleep", "1000"], env={TOKEN_VARIABLE: new_token(work)})
    other = subprocess.Popen(["sleep", "1000"], env={TOKEN_VARIABLE: new_token(tmp_path / "another")})
    try:
        with sole_program(work, limit_s=lambda: 5.0, should_stop=lambda: False, say=print) as lock:
            assert lock is not None
            assert left.wait(timeout=5) == -signal.SIGKILL
            assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


def test_a_lock_whose_holder_cannot_be_seen_is_named_while_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("containers.launch.leftovers._UNSEEN_AFTER_S", 0.5)
    (tmp_path / "work").mkdir()
    said: list[str] = []
    holder = os.open(tmp_path / "work.program.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)  # without the token, as of a program elsewhere
    with sole_program(
        tmp_path / "work", limit_s=lambda: 0.2, should_stop=lambda: len(said) > 1, say=said.append
    ) as lock:
        assert lock is None
    os.close(holder)
    assert "is still held by a process that cannot be seen here" in said[1]
    assert str(tmp_path / "work.program.lock") in said[1]


def test_a_lock_that_is_a_link_is_refused_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "work.program.lock").symlink_to(elsewhere)
    with pytest.raises(CreateRefusedError, match=r"work\.program\.lock cannot be opened: it is a link"):
        ProcessRuntime().run(make_launch(tmp_path, make_spec(runtime="process")))
    assert not elsewhere.exists()


def test_the_grace_that_was_measured_is_said(tmp_path: Path) -> None:
    watcher = Watcher()
    lines = ['{"type": "stopping", "time": 0, "stops_every": 2, "save_s": null}']
    lines += [f'{{"type": "progress", "time": {20 * i}, "done": {i}, "total": 99, "unit": "steps"}}' for i in range(4)]
    lines += ['{"type": "stopping", "time": 80, "stops_every": 2, "save_s": 10.0}']
    program = f"open({EVENTS_FILE!r}, 'w').write({chr(10).join(lines)!r}); {WAITS}"
    launch = make_launch(
        tmp_path, make_spec(runtime="process"), watcher=watcher, should_stop=lambda: "up" in watcher.lines
    )
    stage_exit = ProcessRuntime(command=(sys.executable, "-c", program)).run(launch)
    assert stage_exit.cancelled
    assert any("75 s (measured: 20.0 s a step, stops every 2 steps, 10.0 s to save)" in line for line in watcher.lines)


WAITS = "import time; print('up', flush=True); time.sleep(100)"


def alive(tmp_path: Path) -> list[int]:
    """Processes of the stage whose work folder lies there, wherever they are in the tree of processes."""
    return processes_with(folder_token(tmp_path / "work"))


def command_of(pid: int) -> str:
    return read(pid, "cmdline").replace(b"\0", b" ").decode()


def rank_of(pid: int) -> bool:
    return b"LOCAL_RANK=" in read(pid, "environ")


def read(pid: int, name: str) -> bytes:
    """Empty where the process has ended meanwhile."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def namespaces_of(pids: Iterable[int]) -> set[str]:
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/pid"))
    return found
