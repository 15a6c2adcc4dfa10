"""However a run ends, its exit code says how, and the process goes away."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prefect.exceptions import TerminationSignal

from flows.cli.run import _raise_ending_behind, something_waits
from flows.signals import EndedBySignal


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (EndedBySignal(signal.SIGHUP), EndedBySignal),
        # What Prefect's own handler makes of SIGTERM.
        (TerminationSignal(signal.SIGTERM), EndedBySignal),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_server_that_went_with_the_run_does_not_hide_that_it_was_stopped(
    ending: BaseException, expected: type[BaseException]
) -> None:
    try:
        try:
            raise ending
        except BaseException:
            raise ConnectionError("All connection attempts failed")  # noqa: B904 - as Prefect raises it
    except ConnectionError as error:
        with pytest.raises(expected):
            _raise_ending_behind(error)


def test_a_failure_of_its_own_is_no_ending() -> None:
    _raise_ending_behind(ValueError("no report"))


@pytest.mark.waits
def test_a_process_whose_libraries_wait_for_a_lost_server_ends_within_seconds(project: Path, tmp_path: Path) -> None:
    code = (
        "import sys, threading, time; from flows.cli import main as cli\n"
        "cli._EXIT_LIMIT_S = 0.2\n"
        # Where Prefect waits for its queues.
        "threading._register_atexit(time.sleep, 60)\n"
        f"sys.argv = ['rlhf', 'demo-data', '--folder', {str(tmp_path / 'data')!r}]\n"
        "sys.exit(cli.main() or 7)"
    )
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=False)
    assert time.monotonic() - began < 30
    assert ended.returncode == 0  # that of the command
    assert ended.stdout.endswith("labelled_pairs.jsonl\n")


@pytest.mark.parametrize("file", ["mlflow_pending/1-2-abc.json", "prefect_pending/0a.json"])
def test_what_a_server_was_not_told_yet_is_something_to_do(tmp_path: Path, file: str) -> None:
    assert not something_waits(tmp_path)
    (tmp_path / file).parent.mkdir()
    assert not something_waits(tmp_path)
    (tmp_path / file).touch()
    assert something_waits(tmp_path)
