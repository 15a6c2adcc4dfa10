"""What a process could not tell MLflow outlives it, and is told by the next one: once, and never while it lives."""

import os
import time
from pathlib import Path

import pytest

from tasks.mlflow_sync.state_file import ENDED_TAG, StateFile
from tasks.mlflow_sync.undelivered import FileSource, RunEnd, UndeliveredRun


def run_with(handle: str, *, is_open: bool = False, **tags: str) -> UndeliveredRun:
    """A run that MLflow has, and which lacks these tags there."""
    return UndeliveredRun(handle=handle, run_id=f"id of {handle}", is_open=is_open, tags=tags)


def died(file: StateFile) -> None:
    """As when its process is gone: the kernel frees the lock, nothing is cleaned up."""
    assert file._lock is not None
    os.close(file._lock)


def test_what_waits_is_taken_over_in_order(tmp_path: Path) -> None:
    runs = [run_with(str(number), name="x") for number in range(3)]
    for run in runs:
        file = StateFile(tmp_path)
        file.write([*file.taken_over, run])
        died(file)
    heir = StateFile(tmp_path)
    assert list(heir.taken_over) == runs
    assert [path.name for path in tmp_path.glob("*.json")] == [heir.path.name]
    died(heir)  # before it delivered anything
    assert list(StateFile(tmp_path).taken_over) == runs


def test_what_a_live_process_keeps_is_left_to_it(tmp_path: Path) -> None:
    alive = StateFile(tmp_path)
    alive.write([run_with("a", name="x")])
    assert StateFile(tmp_path).taken_over == ()
    alive.close()
    assert StateFile(tmp_path).taken_over == (run_with("a", name="x"),)


def test_runs_that_a_dead_process_had_open_end_as_killed_when_it_was_last_seen(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    created = run_with("parent", is_open=True)
    unknown = UndeliveredRun(handle="pending-second", parent="id of parent")
    ended = run_with("third")
    ended.close("FINISHED", 5)
    file.write([created, unknown, ended])
    an_hour_ago = int(time.time()) - 3600
    os.utime(file.path, (an_hour_ago, an_hour_ago))
    died(file)
    killed = RunEnd(status="KILLED", time_ms=an_hour_ago * 1000)
    found = {run.handle: run for run in StateFile(tmp_path).taken_over}
    assert {handle: run.end for handle, run in found.items()} == {
        "parent": killed,
        "pending-second": killed,
        "third": RunEnd(status="FINISHED", time_ms=5),
    }
    assert [handle for handle, run in found.items() if ENDED_TAG in run.tags] == ["parent", "pending-second"]


def test_a_sign_of_life_moves_the_time_of_death(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write([run_with("a", is_open=True)])
    os.utime(file.path, (1, 1))
    file.sign_of_life()
    assert time.time() - file.path.stat().st_mtime < 10


def test_a_file_that_cannot_be_read_is_kept_aside_and_costs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoilt, good = StateFile(tmp_path), StateFile(tmp_path)
    for file in (spoilt, good):
        file.write([run_with("a", name="x")])
        died(file)
    spoilt.path.write_text('[{"handle": "a", "ta')
    assert StateFile(tmp_path).taken_over == (run_with("a", name="x"),)
    assert spoilt.path.with_suffix(".unreadable").read_text() == '[{"handle": "a", "ta'
    assert str(spoilt.path) in caplog.text


def test_nothing_is_left_where_everything_was_told(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "waiting")
    run = run_with("a", is_open=True, name="x")
    file.write([run])
    assert file.path.is_file()
    run.close("FINISHED", 1)
    for part in list(run.parts()):
        run.empty(part)
    file.write([run])
    file.close()
    assert not (tmp_path / "waiting").exists()


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = StateFile(tmp_path / "file" / "below")
    file.write([run_with("a", name="x")])
    file.close()


def test_the_run_comes_first_and_its_files_come_last() -> None:
    run = UndeliveredRun(handle="a", params={"seed": "1"}, files={"x/a.txt": FileSource(text="hello")})
    run.close("FAILED", 1)
    assert [part.name for part in run.parts()] == ["run", "params", "end", "files"]
    run.run_id = "1"
    for part in list(run.parts()):
        run.empty(part)
    assert list(run.parts()) == []
