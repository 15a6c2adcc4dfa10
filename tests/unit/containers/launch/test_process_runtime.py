"""The process runtime with real processes: nothing outlives the call, and nothing of the parent leaks in."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.names import OUTCOME_FILE
from containers.contracts.outcome import FailureKind
from containers.contracts.spec import StageSpec
from containers.launch import supervise
from containers.launch.base import CreateRefusedError, InputUnusableError, LaunchRequest, StageExit
from containers.launch.collect import read_outcome
from containers.launch.failures.classify import classify
from containers.launch.gpus.leases import FOLDER_VARIABLE, leased, leased_gpus
from containers.launch.leftovers import folder_token, processes_with
from containers.launch.process import ProcessRuntime
from tests.unit.factories.launch_factory import Watcher, make_input, make_launch, make_profile, make_spec

pytestmark = pytest.mark.waits


def run(
    tmp_path: Path, program: str, *, watcher: Watcher | None = None, grace_s: float = 5, **changes: Any
) -> tuple[StageExit, LaunchRequest]:
    launch_changes = {name: changes.pop(name) for name in ("on_line", "gpu_ids") if name in changes}
    spec = make_spec(runtime="process", **{"timeout_s": 60, **changes})
    launch = make_launch(tmp_path, spec, watcher=watcher, **launch_changes)
    command = (sys.executable, "-c", program)
    return ProcessRuntime(command=command, stop_grace_s=grace_s).run(launch), launch


# As a training: the first SIGTERM lets it save, a second one ends it at once.
SAVES = """
import signal, sys, time
from pathlib import Path
asked = []
def stop(*_):
    if asked:
        Path("aborted").touch()
        sys.exit(1)
    asked.append(1)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
while not asked:
    time.sleep(0.05)
until = time.monotonic() + 2
while time.monotonic() < until:
    time.sleep(0.05)
Path("saved").touch()
"""


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_exit_code_is_the_programs_own(tmp_path: Path, code: int) -> None:
    stage_exit, _ = run(tmp_path, f"import sys; sys.exit({code})")
    assert (stage_exit.exit_code, stage_exit.signal, stage_exit.oom_killed) == (code, None, False)
    assert "peak resident memory" in stage_exit.state


def test_a_death_by_signal_reads_as_in_a_container(tmp_path: Path) -> None:
    stage_exit, launch = run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGBUS)")
    failure = classify(launch.spec, stage_exit, None)
    assert (stage_exit.exit_code, stage_exit.signal) == (135, signal.SIGBUS)
    assert failure is not None
    assert failure.kind is FailureKind.SHM_EXHAUSTED


def test_a_kill_from_outside_is_no_memory_kill(tmp_path: Path) -> None:
    stage_exit, launch = run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    failure = classify(launch.spec, stage_exit, None)
    assert (stage_exit.exit_code, stage_exit.oom_killed) == (137, False)
    assert failure is not None
    assert failure.kind is FailureKind.CONTAINER_LOST


def test_lines_and_ticks_arrive_while_the_stage_runs(tmp_path: Path) -> None:
    arrived: list[tuple[float, str]] = []
    watcher = Watcher()
    program = "import time\nfor i in range(3): print('step', i); time.sleep(0.6)"
    stage_exit, launch = run(
        tmp_path, program, watcher=watcher, on_line=lambda t: arrived.append((time.monotonic(), t))
    )
    assert [text for _, text in arrived] == ["step 0", "step 1", "step 2"]
    assert arrived[2][0] - arrived[0][0] > 1
    assert watcher.num_ticks >= 2
    assert (launch.spec_folder / "stage.log").read_text() == "step 0\nstep 1\nstep 2\n"
    assert stage_exit.log_tail == ("step 0", "step 1", "step 2")


def test_the_end_of_a_stage_is_noticed_without_waiting_for_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A quarter of it may pass between the end of the log and that of the process.
    monkeypatch.setattr(supervise, "POLL_S", 20.0)
    began = time.monotonic()
    run(tmp_path, "print('done')")
    assert time.monotonic() - began < 18


def test_secrets_of_the_parent_stay_outside_and_the_specs_demands_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "canary")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    program = "import json, os, sys; print(json.dumps([dict(os.environ), sys.path, os.getcwd()]))"
    stage_exit, launch = run(tmp_path, program)
    variables, path, folder = json.loads(stage_exit.log_tail[-1])
    assert "canary" not in json.dumps(variables)
    assert dict(launch.spec.required.environment).items() <= variables.items()
    assert folder == str(launch.work_folder)
    assert "" not in path and folder not in path, "the stage's own folder is no place to import from"


def test_gpus_are_chosen_by_the_variable(tmp_path: Path) -> None:
    stage_exit, _ = run(tmp_path, "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])", gpu_ids=("2", "5"))
    assert stage_exit.log_tail == ("2,5",)


def test_the_programs_gpus_can_be_leased_by_nobody_until_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    seen = []

    def lease(line: str) -> None:
        with leased(["GPU-a", "GPU-b"], count=1, holder="next", folder=tmp_path) as taken:
            seen.append((line, taken))

    run(tmp_path, "print('up')", on_line=lease, gpu_ids=("GPU-a",))
    assert ("up", ("GPU-b",)) in seen
    with leased(["GPU-a"], count=1, holder="next", folder=tmp_path) as taken:
        assert taken == ("GPU-a",)


def test_the_supervisor_holds_the_programs_gpus_without_its_orchestrator(tmp_path: Path) -> None:
    source = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[4])!r})\n"
        "from pathlib import Path\n"
        "from tests.unit.factories.launch_factory import make_launch, make_spec\n"
        "from containers.launch.process import ProcessRuntime\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "launch = make_launch(folder, make_spec(runtime='process'), gpu_ids=('GPU-a',), on_line=print)\n"
        f"ProcessRuntime(command=(sys.executable, '-c', {SAVES!r})).run(launch)\n"
    )
    environment = {**os.environ, FOLDER_VARIABLE: str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, env=environment) as one:
        assert one.stdout is not None
        while "up" not in (line := one.stdout.readline()):
            assert line
        one.kill()
        one.communicate()
    lock = tmp_path / "GPU-a.program.lock"
    assert lock.read_text().startswith(folder_token(tmp_path / "work"))
    lock.write_text("")  # what is tested here is who holds it
    with leased(["GPU-a"], count=1, holder="next", folder=tmp_path) as taken:
        assert taken is None
    deadline = time.monotonic() + 30
    while leased_gpus(["GPU-a"], folder=tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (tmp_path / "work" / "saved").exists()


def test_a_lock_of_a_gpu_that_is_a_link_is_refused_with_the_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / "GPU-a.program.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CreateRefusedError, match=r"locks of the GPUs cannot be kept in .* remove it"):
        run(tmp_path, "print('up')", gpu_ids=("GPU-a",))
    assert not (tmp_path / "elsewhere").exists()


def test_soft_limits_are_raised_for_the_stage_and_put_back(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = 32 * 1024**2
    if hard not in (resource.RLIM_INFINITY,) and hard < wanted:
        pytest.skip("the hard stack limit of this machine is too low to see it")
    program = "import resource; print(resource.getrlimit(resource.RLIMIT_STACK)[0])"
    stage_exit, _ = run(tmp_path, program, profile=make_profile(stack_bytes=max(wanted, soft)))
    assert int(stage_exit.log_tail[-1]) >= wanted
    assert resource.getrlimit(resource.RLIMIT_STACK) == (soft, hard)


WITH_WORKER = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(worker.pid)
{}
"""


def test_workers_of_a_dead_stage_do_not_survive_it(tmp_path: Path) -> None:
    started = time.monotonic()
    stage_exit, _ = run(tmp_path, WITH_WORKER.format("sys.exit(1)"))
    assert stage_exit.exit_code == 1
    assert time.monotonic() - started < 5, "a worker that holds the log open does not hold us"
    assert stage_exit.log_tail and not processes_with(folder_token(tmp_path / "work"))


def test_an_interrupt_kills_the_whole_group(tmp_path: Path) -> None:
    alive: list[int] = []

    def interrupt(line: str) -> None:
        alive.extend(processes_with(folder_token(tmp_path / "work")))
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, WITH_WORKER.format("time.sleep(60)"), on_line=interrupt)
    assert len(alive) >= 2, "the stage and its worker were there"
    assert not processes_with(folder_token(tmp_path / "work"))


SAVES_ON_SIGTERM = """
import signal, sys, time
def save(*_):
    open("saved", "w").write("state")
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
print("up")
time.sleep(60)
"""


def test_a_stage_is_stopped_at_its_time_out_and_may_save_first(tmp_path: Path) -> None:
    stage_exit, launch = run(tmp_path, SAVES_ON_SIGTERM, timeout_s=1)
    assert stage_exit.timed_out
    assert 1 <= stage_exit.duration_s < 4
    assert (launch.work_folder / "saved").is_file()


def test_a_stage_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
    stage_exit, _ = run(tmp_path, program, timeout_s=1, grace_s=1)
    assert (stage_exit.exit_code, stage_exit.timed_out) == (137, True)
    assert stage_exit.duration_s < 5


HANGS = """
import faulthandler, signal, time
faulthandler.register(signal.SIGUSR1, all_threads=True)
def waits_for_ever():
    time.sleep(60)
print("up", flush=True)
waits_for_ever()
"""


def test_a_stage_that_gives_no_sign_of_life_is_killed_with_its_stacks_in_the_log(tmp_path: Path) -> None:
    stage_exit, launch = run(tmp_path, HANGS, silence_limit_s=5)
    failure = classify(launch.spec, stage_exit, None)
    assert stage_exit.stalled
    assert stage_exit.duration_s < 40
    assert failure is not None
    assert failure.kind is FailureKind.STALLED
    assert "no sign of life for 5 s" in failure.message
    assert any("waits_for_ever" in line for line in failure.evidence)


@pytest.mark.parametrize("sign", ["print(step, flush=True)", "open('events.jsonl', 'a').write('{}\\n')"])
def test_log_lines_and_events_are_signs_of_life(tmp_path: Path, sign: str) -> None:
    program = f"import time\nfor step in range(16):\n    {sign}\n    time.sleep(0.5)"
    stage_exit, _ = run(tmp_path, program, silence_limit_s=6)
    assert (stage_exit.exit_code, stage_exit.stalled) == (0, False)
    assert stage_exit.duration_s > 6


def test_cancel_stops_the_stage(tmp_path: Path) -> None:
    watcher = Watcher()
    threading.Timer(0.8, lambda: setattr(watcher, "stop", True)).start()
    stage_exit, launch = run(tmp_path, SAVES_ON_SIGTERM, watcher=watcher)
    failure = classify(launch.spec, stage_exit, None)
    assert stage_exit.cancelled
    assert stage_exit.duration_s < 4
    assert failure is not None
    assert failure.kind is FailureKind.CANCELLED


def test_an_interrupt_after_a_cancel_leaves_the_stage_to_save(tmp_path: Path) -> None:
    """The cancel is seen by the watch and, a moment later, by who runs the flow."""
    watcher, cancelled_at = Watcher(), []

    def cancel() -> bool:
        if "up" in watcher.lines:
            cancelled_at.append(time.monotonic())
        return bool(cancelled_at)

    def tick() -> None:
        if cancelled_at and time.monotonic() > cancelled_at[0] + 0.5:
            raise KeyboardInterrupt

    launch = make_launch(tmp_path, make_spec(runtime="process"), watcher=watcher, should_stop=cancel, on_tick=tick)
    with pytest.raises(KeyboardInterrupt):
        ProcessRuntime(command=(sys.executable, "-c", SAVES), stop_grace_s=20).run(launch)
    assert sorted(path.name for path in launch.work_folder.glob("*ed")) == ["saved"]


def test_a_program_whose_log_cannot_be_followed_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(chunks: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("containers.launch.process.ChunkReader", refuses)
    with pytest.raises(RuntimeError, match="new thread"):
        run(tmp_path, "import time; time.sleep(100)")
    assert not processes_with(folder_token(tmp_path / "work"))


@pytest.mark.parametrize(("ends_after_s", "is_memory"), [(0.0, True), (3.0, False)])
def test_a_kill_is_for_memory_only_where_the_kernel_killed_for_memory_just_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_after_s: float, is_memory: bool
) -> None:
    monkeypatch.setattr("containers.launch.process._OOM_KILL_SHOWS_S", 1.5)
    watcher = Watcher()
    monkeypatch.setattr("containers.launch.process.oom_kills", lambda: int("killed for memory" in watcher.lines))
    program = "import os, time; print('up', flush=True); time.sleep(2.5); print('killed for memory', flush=True); "
    program += f"time.sleep(0.3 + {ends_after_s}); os.kill(os.getpid(), 9)"
    stage_exit, _ = run(tmp_path, program, watcher=watcher)
    assert (stage_exit.exit_code, stage_exit.oom_killed) == (137, is_memory)


def test_a_flood_of_log_lines_does_not_hold_up_the_time_out(tmp_path: Path) -> None:
    watcher = Watcher()
    stage_exit, _ = run(tmp_path, "while True: print('y' * 70)", watcher=watcher, timeout_s=2)
    assert stage_exit.timed_out
    assert stage_exit.duration_s < 8
    assert len(watcher.lines) < 2000


def test_an_older_attempts_outcome_is_gone_before_the_stage_starts(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / OUTCOME_FILE).write_text("stale")
    run(tmp_path, "pass")
    assert not (tmp_path / "work" / OUTCOME_FILE).exists()


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputUnusableError, match="start_model"):
        run(tmp_path, "pass", inputs=(make_input("start_model", tmp_path / "nowhere"),))


def test_a_program_that_cannot_be_started_is_a_launch_error(tmp_path: Path) -> None:
    with pytest.raises(CreateRefusedError, match="no-such-program"):
        ProcessRuntime(command=("/no-such-program",)).run(make_launch(tmp_path, make_spec(runtime="process")))


def test_the_real_entry_program_speaks_through_the_work_folder(tmp_path: Path) -> None:
    """More shared memory than any machine has: the entry program refuses with both numbers, before torch."""
    spec = make_spec(runtime="process", timeout_s=60)
    spec = spec.model_copy(update={"required": spec.required.model_copy(update={"shm_size_bytes": 2**60})})
    launch = make_launch(tmp_path, spec)
    stage_exit = ProcessRuntime().run(launch)
    failure = classify(spec, stage_exit, read_outcome(launch.work_folder))
    assert failure is not None
    assert failure.kind is FailureKind.MISSING_PREREQUISITE, stage_exit.log_tail
    assert "/dev/shm" in failure.message
    seen = StageSpec.model_validate_json((launch.spec_folder / "spec.json").read_text())
    assert seen.work_path == str(launch.work_folder)
