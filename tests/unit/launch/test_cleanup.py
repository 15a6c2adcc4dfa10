"""The reaper may only ever take what is ours and whose owner is dead; a mistake here kills somebody's training."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from launch_factory import make_spec

from containers.launch.arguments import stage_labels
from containers.launch.cleanup import current_owner, is_abandoned, owner_of

PROJECT = Path(__file__).resolve().parents[3]
OURS = stage_labels(make_spec())
OWNER = current_owner()


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    return process.pid


def test_a_container_of_a_live_owner_is_not_abandoned() -> None:
    assert not is_abandoned({**OURS, **OWNER.labels()}, owner=OWNER)


def test_a_container_of_a_dead_process_is_abandoned() -> None:
    labels = {**OURS, **replace(OWNER, pid=dead_pid()).labels()}
    assert is_abandoned(labels, owner=OWNER)


def test_a_process_id_that_came_back_is_another_process() -> None:
    boot = OWNER.start.partition(":")[0]
    assert is_abandoned({**OURS, **replace(OWNER, start=f"{boot}:1").labels()}, owner=OWNER)
    assert is_abandoned({**OURS, **replace(OWNER, start="another-boot:1").labels()}, owner=OWNER)


def test_a_process_that_is_only_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    program = (
        "from containers.launch.cleanup import _process_start; import sys; print(_process_start(int(sys.argv[1])))"
    )
    command = [sys.executable, "-c", program, str(process.pid)]
    try:
        start = subprocess.run(command, check=True, capture_output=True, text=True, cwd=PROJECT).stdout.strip()
        labels = {**OURS, **replace(OWNER, pid=process.pid, start=start).labels()}
        assert not is_abandoned(labels, owner=OWNER)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_abandoned(labels, owner=OWNER), "killed, and not yet waited for"
    finally:
        process.kill()
        process.wait()


def test_another_hosts_container_is_never_judged() -> None:
    labels = {**OURS, **replace(OWNER, host="elsewhere pid:[1]", pid=dead_pid()).labels()}
    assert not is_abandoned(labels, owner=OWNER)


def test_a_container_without_our_labels_is_nobodys_business() -> None:
    assert owner_of({}) is None
    assert not is_abandoned({}, owner=OWNER)
    assert not is_abandoned({"rlhf.owner_pid": "1"}, owner=OWNER)
    assert not is_abandoned({**OURS, "rlhf.owner_pid": "not a number"}, owner=OWNER)
