"""A run's folder belongs to one live run at a time: report and links are never those of another."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.prefect_sync.cancellation import never
from tasks.run.lock import RunFolderHeldError, refuse_held_folder, sole_run
from tasks.store.lock import LockError, WaitCancelledError

pytestmark = pytest.mark.waits

HOLD = """
import sys, time
from pathlib import Path
from tasks.prefect_sync.cancellation import never
from tasks.run.lock import sole_run
with sole_run(Path(sys.argv[1]), name="demo", run_id="20260101-1", flow_run_id=sys.argv[2], should_stop=never):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def held_by_another(folder: Path, *, flow_run_id: str = "") -> Iterator[subprocess.Popen[str]]:
    """The folder, held by another process until the block ends."""
    command = [sys.executable, "-c", HOLD, str(folder), flow_run_id]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4])
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.kill()
        holder.communicate()


def take(folder: Path, *, flow_run_id: str = "") -> None:
    with sole_run(folder, name="demo", run_id="20260101-2", flow_run_id=flow_run_id, should_stop=never):
        pass


def test_a_second_run_is_refused_with_who_holds_the_folder_and_what_to_do(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as holder:
        with pytest.raises(RunFolderHeldError) as refused:
            take(tmp_path)
        with pytest.raises(RunFolderHeldError, match="is at work in"):
            refuse_held_folder(tmp_path)
    said = str(refused.value)
    assert f"Run demo (20260101-1) (process {holder.pid} on {socket.gethostname()}, since 20" in said
    assert str(tmp_path) in said
    assert "--set run.name=" in said


def test_a_folder_whose_holder_was_killed_is_free_at_once(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as holder:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        refuse_held_folder(tmp_path)
        take(tmp_path)


def test_a_folder_whose_run_ended_or_was_suspended_is_free(tmp_path: Path) -> None:
    take(tmp_path)
    refuse_held_folder(tmp_path)
    take(tmp_path)


def test_a_folder_that_is_not_there_is_free_and_is_not_made(tmp_path: Path) -> None:
    refuse_held_folder(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_retry_of_the_same_flow_run_waits_for_the_process_before_it(tmp_path: Path) -> None:
    with held_by_another(tmp_path, flow_run_id="flow-run-1") as before:
        threading.Timer(2.0, before.kill).start()
        take(tmp_path, flow_run_id="flow-run-1")
        assert before.poll() is not None or before.wait(timeout=10) is not None


def test_a_retry_that_is_cancelled_while_it_waits_ends(tmp_path: Path) -> None:
    began = time.monotonic()
    with (
        held_by_another(tmp_path, flow_run_id="flow-run-1"),
        pytest.raises(WaitCancelledError),
        sole_run(
            tmp_path,
            name="demo",
            run_id="2",
            flow_run_id="flow-run-1",
            should_stop=lambda: time.monotonic() > began + 1,
        ),
    ):
        pass


def test_a_lock_that_is_a_link_is_refused_in_a_sentence_and_left(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious", encoding="utf-8")
    (tmp_path / ".run.lock").symlink_to(target)
    with pytest.raises(LockError, match=r"\.run\.lock is a link to .*precious.* Remove the link"):
        take(tmp_path)
    assert target.read_text(encoding="utf-8") == "precious"
