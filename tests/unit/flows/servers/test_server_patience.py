"""A server on its way up is waited for as long as it is at work, and given up with advice that fits what was seen."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flows.servers.process import ServerError, ServerPlan, free_ports, port_problem, start_process, stop_groups
from flows.servers.settings import ServerSettings
from flows.servers.start import StartedServer, entry_of, wait_until_healthy
from flows.servers.use import ServersUse

pytestmark = pytest.mark.waits

# Longer than the limit that the tests set for doing nothing.
AT_WORK_S, IDLE_LIMIT_S = 5.0, 3.0
SERVE = """
import http.server, sys, time
began = time.monotonic()
{beforehand}
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()
"""
LOGS = f"""
while time.monotonic() - began < {AT_WORK_S}:
    print("migrating", flush=True)
    time.sleep(0.2)
"""
COMPUTES = f"""
while time.monotonic() - began < {AT_WORK_S}:
    sum(range(100_000))
"""
LETS_COMPUTE = f"""
import subprocess
subprocess.run([sys.executable, "-c", "import time; began = time.monotonic()" + {COMPUTES!r}])
"""
DOES_NOTHING = "print('last words', flush=True); time.sleep(600)"
DIES = "print('ImportError: libfoo.so', flush=True); sys.exit(3)"


@contextmanager
def started(folder: Path, beforehand: str, *, port: int = 0) -> Iterator[StartedServer]:
    """A server that does something before it answers."""
    port = port or free_ports(1)[0]
    command = (sys.executable, "-c", SERVE.format(beforehand=beforehand), str(port))
    plan = ServerPlan(name="mlflow", command=command, environment={}, folder=folder, port=port)
    child = start_process(plan)
    try:
        yield StartedServer(plan, entry_of(plan, child.pid), child)
    finally:
        stop_groups([child.pid], children={child.pid: child})


def wait(server: StartedServer, *, say_every_s: float = 15.0, longest_s: float = 600.0) -> list[str]:
    said: list[str] = []
    wait_until_healthy(
        [server], idle_limit_s=IDLE_LIMIT_S, longest_s=longest_s, say=said.append, say_every_s=say_every_s
    )
    return said


@pytest.mark.parametrize("beforehand", [LOGS, COMPUTES, LETS_COMPUTE], ids=["log", "processor", "processor of a child"])
def test_a_server_that_is_at_work_is_waited_for_beyond_the_limit_and_that_is_said(
    tmp_path: Path, beforehand: str
) -> None:
    with started(tmp_path, beforehand) as server:
        said = wait(server, say_every_s=2.0)
    assert re.fullmatch(r"MLflow is at work but not ready after \d+ s; waiting\. Its log: .*/server\.log", said[0])
    assert "MLflow is ready after" in said[-1]


def test_a_server_that_does_nothing_is_given_up_with_its_log_and_no_word_about_ports(tmp_path: Path) -> None:
    with started(tmp_path, DOES_NOTHING) as server, pytest.raises(ServerError) as caught:
        wait(server)
    told = str(caught.value)
    assert "has done nothing for" in told and "neither its log nor its use of the processor grew" in told
    assert "last words" in told
    assert "port" not in told.partition("Last lines")[0]


def test_a_server_that_works_for_ever_is_given_up_at_last(tmp_path: Path) -> None:
    with started(tmp_path, LOGS) as server, pytest.raises(ServerError, match="is at work, but still not healthy after"):
        wait(server, longest_s=1.0)


def test_a_server_that_died_is_told_with_its_exit_code_and_last_lines(tmp_path: Path) -> None:
    with started(tmp_path, DIES) as server, pytest.raises(ServerError) as caught:
        wait(server)
    told = str(caught.value)
    assert "The MLflow server ended with exit code 3." in told
    assert "ImportError: libfoo.so" in told
    assert "another port" not in told


def test_a_server_whose_port_was_taken_meanwhile_is_told_with_the_holder(tmp_path: Path) -> None:
    holder = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True) as taker:
        try:
            assert taker.stdout is not None
            port = int(taker.stdout.readline())
            with started(tmp_path, "", port=port) as server, pytest.raises(ServerError) as caught:
                wait(server)
        finally:
            taker.kill()
    told = str(caught.value)
    assert f"port {port} was taken while it started: it is held by pid {taker.pid} (" in told
    assert "Start again" in told and "tracking.mlflow_port" in told


def test_a_stranger_who_answers_on_the_port_is_not_taken_for_our_server(tmp_path: Path) -> None:
    """Two users who start at once choose the same port: without a login, one would write into the other's MLflow."""
    port = free_ports(1)[0]
    stranger = (sys.executable, "-c", SERVE.format(beforehand=""), str(port))
    with subprocess.Popen(stranger, stderr=subprocess.DEVNULL) as taker:
        try:
            while port_problem(port, host="127.0.0.1") is None:
                time.sleep(0.05)
            with started(tmp_path, "time.sleep(2)", port=port) as server, pytest.raises(ServerError) as caught:
                wait(server)
        finally:
            taker.kill()
    assert f"port {port} was taken while it started: it is held by pid {taker.pid} (" in str(caught.value)


def recorded(folder: Path) -> tuple[ServersUse, list[str]]:
    """A use of servers of that folder, and what it says."""
    said: list[str] = []
    settings = ServerSettings(state_dir=folder, idle_limit_s=IDLE_LIMIT_S, longest_start_s=60.0)
    return ServersUse(settings, ("mlflow",), said.append), said


def test_a_server_in_use_that_is_at_work_is_waited_for_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.servers.use._SAY_EVERY_S", 1.0)
    with started(tmp_path, LOGS) as server:
        use, said = recorded(tmp_path / "state")
        assert use._wait_for_answer(server.entry, is_in_use=True) is None
    assert said and "MLflow runs but does not answer after" in said[0]


def test_a_server_in_use_that_hangs_is_given_up_and_one_that_only_works_is_never_stopped(tmp_path: Path) -> None:
    with started(tmp_path / "hangs", DOES_NOTHING) as server:
        use, _ = recorded(tmp_path / "state")
        assert use._wait_for_answer(server.entry, is_in_use=True) is not None
    with started(tmp_path / "works", LOGS) as server:
        use, _ = recorded(tmp_path / "state")
        use.settings = replace(use.settings, longest_start_s=1.0)
        with pytest.raises(ServerError, match="is at work for other runs"):
            use._wait_for_answer(server.entry, is_in_use=True)


def test_a_port_that_another_user_holds_is_told_with_that_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # As another user, who may not look into our processes, nor perhaps import what this Python has not yet.
        script = (
            "import encodings.ascii, encodings.idna, os\nfrom flows.servers.process import port_problem\n"
            f"os.setuid(65534)\nprint(port_problem({port}))"
        )
        asked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if "PermissionError" in asked.stderr:
        pytest.skip("ONLY ROOT CAN BECOME ANOTHER USER, so nothing was asked as one.")
    assert asked.stdout.strip() == "it is held by a process of user root", asked.stderr
