"""SIGTERM ends a stage at once, but lets a training end its step, where that can end well."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.stages.stopping import StageCancelledError, StopSignal


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def _listening(work: Path | None = None) -> StopSignal:
    stop = StopSignal(work)
    stop.listen()
    return stop


def _terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def test_outside_a_training_the_stage_ends_at_once() -> None:
    _listening()
    with pytest.raises(StageCancelledError, match="it goes on from its last checkpoint"):
        _terminate()


def test_within_a_training_the_first_signal_waits_for_the_step_and_the_second_does_not() -> None:
    stop = _listening()
    steps = []
    with pytest.raises(StageCancelledError), stop.after_step():
        _terminate()
        steps.append(stop.requested)
        _terminate()
        steps.append(False)
    assert steps == [True]


def test_a_request_that_nobody_met_ends_the_stage_when_the_training_is_over() -> None:
    stop = _listening()
    over = []
    with pytest.raises(StageCancelledError), stop.after_step():
        _terminate()
        over.append(True)
    assert over


def test_after_a_training_the_stage_ends_at_once_again() -> None:
    stop = _listening()
    with stop.after_step():
        pass
    with pytest.raises(StageCancelledError):
        _terminate()


def test_where_another_rank_has_failed_no_step_can_end(tmp_path: Path) -> None:
    """torchrun then stops the others with SIGTERM, and they would wait for it in the next collective."""
    stop = _listening(tmp_path)
    (tmp_path / "failure-rank-1.json").write_text("{}")
    with pytest.raises(StageCancelledError), stop.after_step():
        _terminate()
        raise AssertionError("unreachable")
    assert not stop.requested


def test_an_outcome_is_written_to_its_end() -> None:
    stop = _listening()
    stop.end()
    _terminate()


ORPHAN = """
import os, sys, time
from containers.stages.stopping import StageCancelledError, StopSignal
stop = StopSignal(rank=int(sys.argv[2]) if sys.argv[2] else None)
stop.listen()
try:
    with stop.after_step():
        print(os.getpid(), flush=True)
        while not stop.requested:
            time.sleep(0.01)
        answer = "after the step"
except StageCancelledError:
    answer = locals().get("answer", "at once")
open(sys.argv[1], "w").write(answer)
"""
# Starts a process that starts the stage, as torchrun does between orchestrator and ranks.
BETWEEN = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


@pytest.mark.parametrize("rank", [None, 1])
@pytest.mark.parametrize("orchestrator_lives", [True, False])
def test_a_stage_without_orchestrator_ends_at_once_for_the_next_attempt_may_start_any_moment(
    tmp_path: Path, rank: int | None, orchestrator_lives: bool
) -> None:
    told = tmp_path / "told"
    stage = [sys.executable, "-c", *([BETWEEN] if rank else []), ORPHAN, str(told), str(rank or "")]
    starter = f"import subprocess, time\nsubprocess.Popen({stage!r})\ntime.sleep(120)"
    orchestrator = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True)
    assert orchestrator.stdout is not None
    pid = int(orchestrator.stdout.readline())
    try:
        if not orchestrator_lives:
            orchestrator.kill()
            orchestrator.wait()
        os.kill(pid, signal.SIGTERM)
        _wait_for_end(pid, told)
    finally:
        orchestrator.kill()
        orchestrator.wait()
    assert told.read_text() == ("after the step" if orchestrator_lives else "at once")


def _wait_for_end(pid: int, told: Path) -> None:
    deadline = time.monotonic() + 60
    while not (told.exists() and told.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
