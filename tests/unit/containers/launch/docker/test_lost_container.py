"""GPUs of a container whose daemon is away stay leased until none of its processes lives."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.names import TOKEN_VARIABLE
from containers.launch.docker import runtime
from containers.launch.leftovers import new_token
from containers.launch.stage_log import StageLog
from tests.unit.factories.launch_factory import Watcher, make_launch, make_spec


class Orphan:
    """What Docker calls it; no daemon is there to remove it."""

    name = "stage"


@pytest.mark.waits
def test_a_container_that_cannot_be_removed_is_waited_for_as_long_as_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "removed", lambda container: False)
    monkeypatch.setattr(runtime, "_REMOVE_AGAIN_S", 0.05)
    watcher = Watcher()
    launch = make_launch(tmp_path, make_spec(), watcher=watcher)
    environment = {**os.environ, TOKEN_VARIABLE: new_token(launch.work_folder)}
    orphan: Any = Orphan()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environment) as process:
        time.sleep(0.5)
        killer = threading.Timer(1.0, process.kill)
        killer.start()
        began = time.monotonic()
        with StageLog(tmp_path / "log", launch.on_line) as log:
            runtime._wait_for_its_end(orphan, launch, log)
        assert time.monotonic() - began >= 0.8
        assert process.wait(timeout=5) == -9
    (line,) = [line for line in watcher.lines if "GPUs stay leased" in line]
    assert f"processes {process.pid} of stage live" in line
