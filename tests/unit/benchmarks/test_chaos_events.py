"""A chaos that cannot be repeated finds faults that nobody can look for, and one that sees nothing finds none."""

import errno
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import chaos_run
from benchmarks.chaos import small_disk
from benchmarks.chaos_events import KINDS, alive_below, full, schedule
from benchmarks.chaos_run import Run, left_alive
from containers.contracts.names import TOKEN_VARIABLE
from containers.launch.leftovers import new_token
from tests.faults.tiny_project import TinyProject

pytestmark = pytest.mark.waits


def test_the_same_seed_gives_the_same_faults_at_the_same_moments() -> None:
    assert list(islice(schedule(7, KINDS), 50)) == list(islice(schedule(7, KINDS), 50))
    assert list(islice(schedule(7, KINDS), 50)) != list(islice(schedule(8, KINDS), 50))


def test_of_so_many_faults_as_there_are_kinds_each_kind_is_one() -> None:
    kinds = [event.kind for event in islice(schedule(3, KINDS), 2 * len(KINDS))]
    assert sorted(kinds[: len(KINDS)]) == sorted(kinds[len(KINDS) :]) == sorted(KINDS)


@pytest.mark.parametrize("how", ["argument", "environment", "working folder"])
def test_what_a_run_left_is_found_by_its_folder(tmp_path: Path, how: str) -> None:
    assert alive_below(tmp_path) == []
    left = subprocess.Popen(
        [sys.executable, "-c", "print(end='!', flush=True); input()", *([str(tmp_path)] if how == "argument" else [])],
        env={"PLACE": str(tmp_path)} if how == "environment" else {},
        cwd=tmp_path if how == "working folder" else "/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        # It has its command line only some time after it was started; what it prints shows that it has.
        assert left.stdout is not None and left.stdout.read(1) == b"!"
        (found,) = alive_below(tmp_path)
        assert found.startswith(f"{left.pid} ")
    finally:
        left.communicate(b"\n")
    assert alive_below(tmp_path) == []


@pytest.mark.parametrize("kept", ["work", "artifacts"])
def test_what_a_stage_left_is_found_by_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    monkeypatch.setattr(chaos_run, "_ENDS_WITHIN_S", 0)
    run = Run(TinyProject(tmp_path), "tiny.yaml", "run", tmp_path / "run", ())
    (tmp_path / "run/store" / kept / "train_policy/0123").mkdir(parents=True)
    token = new_token(tmp_path / "run/store/work/train_policy/0123")
    with subprocess.Popen(
        [sys.executable, "-c", "print(end='!', flush=True); input()"],
        env={TOKEN_VARIABLE: token},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as left:
        assert left.stdout is not None and left.stdout.read(1) == b"!"
        (found,) = left_alive(run)
        assert found.startswith(f"{left.pid} has the token of ")
        left.communicate(b"\n")
    assert left_alive(run) == []


def test_a_disk_is_full_for_a_while_and_has_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as problem:
        if problem:
            pytest.skip(f"FULL DISK NOT TESTED: to mount a small tmpfs needs root and leave to mount ({problem}).")
        with full(tmp_path / "disk"), pytest.raises(OSError) as caught:
            (tmp_path / "disk" / "more").write_bytes(bytes(100_000))
        assert caught.value.errno == errno.ENOSPC
        assert (tmp_path / "disk" / "more").write_bytes(bytes(100_000)) == 100_000
