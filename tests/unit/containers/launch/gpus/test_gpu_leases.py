"""Two runs that share a card by accident both die of it; real locks, real processes."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from containers.launch.gpus import leases as gpu_leases
from containers.launch.gpus.leases import lease_folder, leased, leased_gpus, open_lease_folder, program_locks
from containers.launch.leftovers import new_token
from tests.unit.factories.stage_processes import left_with_token

UUIDS = ("GPU-a", "GPU-b", "GPU-c")
PROGRAM = """
import sys, time
from pathlib import Path
from containers.launch.gpus.leases import leased
with leased(["GPU-a"], count=1, holder="victim 1, train_policy", folder=Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_card_is_had_by_one_and_the_next_gets_the_others(tmp_path: Path) -> None:
    with leased(UUIDS, count=2, holder="first", folder=tmp_path) as first:
        assert first == ("GPU-a", "GPU-b")
        with leased(UUIDS, count=1, holder="second", folder=tmp_path) as second:
            assert second == ("GPU-c",)
            assert set(leased_gpus(UUIDS, folder=tmp_path)) == set(UUIDS)
    assert leased_gpus(UUIDS, folder=tmp_path) == {}


def test_too_few_leave_none_taken(tmp_path: Path) -> None:
    with (
        leased(UUIDS[:1], count=1, holder="first", folder=tmp_path),
        leased(UUIDS, count=3, holder="second", folder=tmp_path) as second,
    ):
        assert second is None
        assert set(leased_gpus(UUIDS, folder=tmp_path)) == {"GPU-a"}, "what it could have had is free again"


def test_the_lease_of_a_killed_holder_is_free_at_once_and_named_until_then(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "held\n"
        (words,) = leased_gpus(["GPU-a"], folder=tmp_path).values()
        assert words.startswith(f"Run victim 1, train_policy (process {victim.pid} on ")
        assert "sign of life" not in words
        victim.kill()
        victim.wait()
        with leased(["GPU-a"], count=1, holder="next", folder=tmp_path) as taken:
            assert taken == ("GPU-a",)


ORPHANING = """
import subprocess, sys, time
from pathlib import Path
from containers.launch.gpus.leases import leased, program_locks
folder = Path(sys.argv[1])
with leased(["GPU-a"], count=1, holder="victim 1, train_policy", folder=folder) as uuids:
    with program_locks(uuids, folder=folder, token="f00d-1") as locks:
        left = subprocess.Popen(["sleep", "60"], pass_fds=locks)
        print(left.pid, flush=True)
        time.sleep(60)
"""


@pytest.mark.waits
def test_a_card_is_not_free_while_the_program_of_a_killed_run_still_has_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ORPHANING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        left = psutil.Process(int(victim.stdout.readline()))
        victim.kill()
        victim.wait()
        try:
            with leased(UUIDS, count=1, holder="next", folder=tmp_path) as taken:
                assert taken == ("GPU-b",)
            (words,) = leased_gpus(["GPU-a"], folder=tmp_path).values()
            assert words.startswith(f"Run victim 1, train_policy (process {victim.pid} on ")
        finally:
            left.kill()
            psutil.wait_procs([left], timeout=10)
    with leased(["GPU-a"], count=1, holder="next", folder=tmp_path) as taken:
        assert taken == ("GPU-a",)


def test_the_lock_of_a_program_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "GPU-a.program.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"), program_locks(["GPU-a"], folder=tmp_path, token="f00d-2"):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_card_is_not_free_while_a_process_of_its_program_lives_that_holds_no_lock(tmp_path: Path) -> None:
    token = new_token(tmp_path)
    with left_with_token(token):
        with program_locks(["GPU-a"], folder=tmp_path, token=token):
            pass
        with leased(UUIDS, count=1, holder="next", folder=tmp_path) as taken:
            assert taken == ("GPU-b",)
    with leased(UUIDS, count=1, holder="next", folder=tmp_path) as taken:
        assert taken == ("GPU-a",)


def test_a_program_that_ended_well_leaves_no_token_to_look_for(tmp_path: Path) -> None:
    with program_locks(["GPU-a"], folder=tmp_path, token=new_token(tmp_path)):
        assert (tmp_path / "GPU-a.program.lock").read_text()
    assert (tmp_path / "GPU-a.program.lock").read_text() == ""


def test_a_holder_that_gives_no_sign_of_life_keeps_its_lease_and_is_pointed_at(tmp_path: Path) -> None:
    with leased(["GPU-a"], count=1, holder="stuck", folder=tmp_path):
        record = tmp_path / "GPU-a.holder.json"
        facts = json.loads(record.read_text())
        record.write_text(json.dumps({**facts, "beat": time.time() - 600}))
        (words,) = leased_gpus(["GPU-a"], folder=tmp_path).values()
        assert "without a sign of life since 20" in words and f"look at process {facts['pid']}" in words
        with leased(["GPU-a"], count=1, holder="next", folder=tmp_path) as taken:
            assert taken is None, "its stage may still compute on the card"


def test_the_heart_beats_while_the_lease_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_leases, "HEARTBEAT_S", 0.05)
    record = tmp_path / "GPU-a.holder.json"
    with leased(["GPU-a"], count=1, holder="alive", folder=tmp_path):
        first, deadline = json.loads(record.read_text())["beat"], time.monotonic() + 30
        while json.loads(record.read_text())["beat"] == first:
            assert time.monotonic() < deadline, "it never beat again"
            time.sleep(0.02)
    assert not record.exists()


def test_a_record_that_cannot_be_read_does_not_free_the_lease(tmp_path: Path) -> None:
    with leased(["GPU-a"], count=1, holder="garbled", folder=tmp_path):
        (tmp_path / "GPU-a.holder.json").write_text("{")
        assert leased_gpus(["GPU-a"], folder=tmp_path) == {"GPU-a": "Another run"}


def test_several_users_may_name_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_GPU_LEASES", str(tmp_path / "shared"))
    assert lease_folder() == open_lease_folder() == tmp_path / "shared"
    with leased(["GPU-a"], count=1, holder="one", folder=lease_folder()):
        for name in ("GPU-a.lock", "queue.lock"):
            assert (tmp_path / "shared" / name).stat().st_mode & 0o777 == 0o666
