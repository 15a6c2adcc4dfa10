"""What a process could not tell MLflow outlives it, and is told by the next one: once, and never while it lives."""

import os
import time
from pathlib import Path

from tasks.mlflow_sync.operations import CreateRun, EndRun, RunOperation, SetTags
from tasks.mlflow_sync.spool import ENDED_TAG, OpenRun, Spool


def tag(run: str, value: str = "x") -> SetTags:
    return SetTags(run=run, tags=(("name", value),))


def creation(run: str) -> CreateRun:
    return CreateRun(run=run, experiment="e", name="n", start_time_ms=1)


def ends(operations: tuple[CreateRun | RunOperation, ...]) -> dict[str, str]:
    """Run → status that it is given."""
    return {item.run: item.status for item in operations if isinstance(item, EndRun)}


def died(spool: Spool) -> None:
    """As when its process is gone: the kernel frees the lock, nothing is cleaned up."""
    assert spool._lock is not None
    os.close(spool._lock)


def test_what_waits_is_taken_over_in_order(tmp_path: Path) -> None:
    for number in range(3):
        spool = Spool(tmp_path)
        spool.append(tag("a", str(number)))
        died(spool)
    heir = Spool(tmp_path)
    assert heir.operations == tuple(tag("a", str(number)) for number in range(3))
    assert [path.name for path in tmp_path.glob("*.jsonl")] == [heir.path.name]


def test_what_a_live_process_keeps_is_left_to_it(tmp_path: Path) -> None:
    alive = Spool(tmp_path)
    alive.append(tag("a"))
    assert Spool(tmp_path).operations == ()
    alive.close()
    assert Spool(tmp_path).operations == (tag("a"),)


def test_runs_that_a_dead_process_had_open_end_as_killed_when_it_was_last_seen(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for run in ("parent", "first", "second"):
        spool.run_opened(run)
    spool.run_ended("first")
    spool.append(creation("pending-third"))
    an_hour_ago = time.time() - 3600
    os.utime(spool.path, (an_hour_ago, an_hour_ago))
    died(spool)
    heir = Spool(tmp_path)
    assert ends(heir.operations) == {"parent": "KILLED", "second": "KILLED", "pending-third": "KILLED"}
    assert all(abs(item.end_time_ms / 1000 - an_hour_ago) < 1 for item in heir.operations if isinstance(item, EndRun))
    assert sum(isinstance(item, SetTags) and item.tags[0][0] == ENDED_TAG for item in heir.operations) == 3


def test_a_run_whose_end_waits_keeps_its_own_end(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.run_opened("good")
    spool.append(EndRun(run="good", status="FINISHED", end_time_ms=5))
    died(spool)
    assert ends(Spool(tmp_path).operations) == {"good": "FINISHED"}


def test_a_sign_of_life_moves_the_time_of_death(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.run_opened("a")
    os.utime(spool.path, (1, 1))
    spool.sign_of_life()
    assert time.time() - spool.path.stat().st_mtime < 10


def test_half_a_line_of_a_killed_process_costs_that_line_only(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(tag("a"))
    with spool.path.open("a") as stream:
        stream.write('{"kind": "tags", "ru')
    died(spool)
    assert Spool(tmp_path).operations == (tag("a"),)


def test_nothing_is_left_where_everything_was_told(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "waiting")
    spool.run_opened("a")
    spool.append(tag("a"))
    spool.replace([])
    spool.run_ended("a")
    spool.close()
    assert not (tmp_path / "waiting").exists()


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spool = Spool(tmp_path / "file" / "below")
    spool.append(tag("a"))
    spool.run_opened("a")
    spool.replace([tag("b")])
    assert spool.operations == (tag("b"),)
    spool.close()


def test_open_runs_are_no_operations(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.run_opened("a")
    assert len(spool) == 0
    assert OpenRun(run="a").model_dump_json() in spool.path.read_text()
