"""A stage whose orchestrator or supervisor dies saves its state, ends, and holds up nothing after it."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from containers.contracts.names import EVENTS_FILE, TOKEN_VARIABLE
from containers.harness.pid_namespace import namespace_is_allowed
from containers.harness.supervisor import OOM_SCORE, Supervisor
from containers.launch.base import CreateRefusedError
from containers.launch.leftovers import new_token, sole_program
from containers.launch.process import ProcessRuntime
from tests.unit.factories.launch_factory import Watcher, make_launch, make_spec
from tests.unit.factories.stage_processes import alive, command_of, left_with_token

pytestmark = pytest.mark.waits

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
    with (
        left_with_token(new_token(work)) as left,
        left_with_token(new_token(tmp_path / "another")) as other,
        sole_program(work, limit_s=lambda: 5.0, should_stop=lambda: False, say=print) as lock,
    ):
        assert lock is not None
        assert left.wait(timeout=5) == -signal.SIGKILL
        assert other.poll() is None


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
