"""Both servers really start, are shared, and end with their user: an orphan would hold port and database for ever."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.servers.local import Servers, ServerSettings, local_servers
from flows.servers.process import ServerError

HOLDER = """
import sys, time
from pathlib import Path
from flows.servers.local import ServerSettings, local_servers
with local_servers(ServerSettings(state_dir=Path(sys.argv[1])), say=lambda text: None) as servers:
    print("up", servers.prefect_ui_url, servers.mlflow_uri, flush=True)
    time.sleep(300)
"""

SERVE = """
import sys
from pathlib import Path
from flows.servers.local import ServerSettings, serve_until_interrupted
serve_until_interrupted(ServerSettings(state_dir=Path(sys.argv[1])), say=lambda text: print(text, flush=True))
"""


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests here, so that Prefect makes its database only once. Its name needs quoting."""
    return tmp_path_factory.mktemp("servers") / "a state #1 ?x=%20"


@pytest.fixture(scope="module")
def running(state_dir: Path) -> Iterator[Servers]:
    with local_servers(ServerSettings(state_dir=state_dir), say=lambda text: None) as servers:
        yield servers


@pytest.fixture
def named(running: Servers, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """Those servers, as one finds them who has their address and login in the environment."""
    monkeypatch.setenv("PREFECT_API_URL", running.prefect_api_url)
    return running


@pytest.fixture
def no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the servers that run here for other tests."""
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)


def recorded_groups(state_dir: Path) -> list[int]:
    record = json.loads((state_dir / "servers.json").read_text())
    return [server["pid"] for server in record["servers"]]


def processes_of(groups: list[int]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.Error):
            continue
    return found


def get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.addheaders = [("Accept", "text/html")]
    with opener.open(url, timeout=20) as response:
        return str(response.read().decode())


def start_holder(state_dir: Path, project: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(state_dir)], cwd=project, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().startswith("up http"), "the servers did not start"
    return holder


def end(holder: subprocess.Popen[str]) -> None:
    if holder.poll() is None:
        holder.kill()
    holder.communicate(timeout=30)


def test_the_pages_are_served_and_find_their_api_on_any_port(running: Servers) -> None:
    assert json.loads(get(f"{running.prefect_ui_url}/ui-settings"))["api_url"] == "/api"
    page = get(f"{running.prefect_ui_url}/")
    assert "<title>Prefect" in page
    for script in re.findall(r'src="(/[^"]+\.js)"', page):
        assert len(get(f"{running.prefect_ui_url}{script}")) > 1000
    assert get(f"{running.prefect_api_url}/health") == "true"
    assert "<title>MLflow</title>" in get(f"{running.mlflow_uri}/")


def test_state_lies_in_the_folder_and_only_its_owner_may_look(running: Servers, state_dir: Path) -> None:
    for name, database in (("prefect", "prefect.db"), ("mlflow", "mlflow.db")):
        assert (state_dir / name / database).is_file()
        assert (state_dir / name).stat().st_mode & 0o777 == 0o700


def test_both_listen_on_the_loopback_interface_only(running: Servers, state_dir: Path) -> None:
    addresses = {
        connection.laddr.ip
        for process in processes_of(recorded_groups(state_dir))
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses == {"127.0.0.1"}


def test_a_second_use_takes_the_running_servers_and_leaves_them_running(running: Servers, state_dir: Path) -> None:
    said: list[str] = []
    with local_servers(ServerSettings(state_dir=state_dir), say=said.append) as second:
        assert second == running
    assert len([text for text in said if text.startswith("Using the")]) == 2
    assert get(f"{running.prefect_api_url}/health") == "true"


def test_a_configured_server_is_used_and_only_the_other_is_started(named: Servers, tmp_path: Path) -> None:
    settings = ServerSettings(
        state_dir=tmp_path, prefect_api_url=named.prefect_api_url, mlflow_uri=f"{named.mlflow_uri}/"
    )
    with local_servers(settings, say=lambda text: None) as servers:
        assert servers.prefect_ui_url == named.prefect_ui_url
        assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_login")
def test_a_configured_prefect_that_does_not_answer_is_named_with_its_key(tmp_path: Path) -> None:
    settings = ServerSettings(state_dir=tmp_path, prefect_api_url="http://127.0.0.1:9/api")
    wanted = r"tracking\.prefect_api_url: no healthy .* at http://127.0.0.1:9.*Connection refused"
    with pytest.raises(ServerError, match=wanted), local_servers(settings, say=lambda text: None):
        pass


def test_a_configured_mlflow_that_does_not_answer_is_said_and_stops_nothing(named: Servers, tmp_path: Path) -> None:
    said: list[str] = []
    settings = ServerSettings(
        state_dir=tmp_path, prefect_api_url=named.prefect_api_url, mlflow_uri="http://127.0.0.1:9"
    )
    with local_servers(settings, say=said.append) as servers:
        assert servers.mlflow_uri == "http://127.0.0.1:9"
    assert "no healthy MLflow server at http://127.0.0.1:9" in said[0]
    assert "tracking.mlflow_uri" in said[0]


@pytest.mark.usefixtures("no_login")
def test_an_address_that_lacks_its_api_part_gets_a_hint(running: Servers, tmp_path: Path) -> None:
    settings = ServerSettings(state_dir=tmp_path, prefect_api_url="http://127.0.0.1:9")
    with pytest.raises(ServerError, match="ends in /api"), local_servers(settings, say=lambda text: None):
        pass


@pytest.mark.parametrize("name", ["prefect", "mlflow"])
def test_a_port_in_use_is_named_with_its_holder_and_its_key(tmp_path: Path, name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = ServerSettings(state_dir=tmp_path, **{f"{name}_port": port})
        with pytest.raises(ServerError) as caught, local_servers(settings, say=lambda text: None):
            pass
    message = str(caught.value)
    assert f"Port {port}" in message
    assert f"pid {os.getpid()}" in message
    assert f"tracking.{name}_port" in message
    assert not (tmp_path / "servers.json").exists()


def test_a_server_that_cannot_start_shows_the_end_of_its_log_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.db").write_text("this is no database" * 100)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    settings = ServerSettings(state_dir=tmp_path)
    with pytest.raises(ServerError) as caught, local_servers(settings, say=lambda text: None):
        pass
    assert "MLflow server" in str(caught.value)
    assert "file is not a database" in str(caught.value)
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before
    assert not (tmp_path / "servers.json").exists()


def test_a_server_that_takes_too_long_is_given_up_and_stopped(tmp_path: Path) -> None:
    settings = ServerSettings(state_dir=tmp_path, longest_start_s=0.5)
    with (
        pytest.raises(ServerError, match=r"is at work, but still not healthy after"),
        local_servers(settings, say=lambda text: None),
    ):
        pass
    assert not (tmp_path / "servers.json").exists()


@pytest.mark.slow  # each starts servers of its own
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_user_leaves_no_process(
    state_dir: Path, project: Path, running: Servers, tmp_path: Path, number: int
) -> None:
    copy = tmp_path / "servers"  # with a Prefect database that is made already
    subprocess.run(["cp", "-r", str(state_dir), str(copy)], check=True)
    (copy / "servers.json").unlink()
    holder = start_holder(copy, project)
    try:
        groups = recorded_groups(copy)
        assert len(processes_of(groups)) >= 2
        holder.send_signal(number)
        holder.wait(timeout=30)
        assert processes_of(groups) == []
        assert not (copy / "servers.json").exists()
    finally:
        end(holder)


@pytest.mark.slow
def test_servers_of_a_killed_user_are_taken_over_and_ended_by_the_next(
    state_dir: Path, project: Path, running: Servers, tmp_path: Path
) -> None:
    copy = tmp_path / "servers"
    subprocess.run(["cp", "-r", str(state_dir), str(copy)], check=True)
    (copy / "servers.json").unlink()
    holder = start_holder(copy, project)
    holder.kill()
    end(holder)
    groups = recorded_groups(copy)
    assert len(processes_of(groups)) >= 2
    began = time.monotonic()
    with local_servers(ServerSettings(state_dir=copy), say=lambda text: None):
        assert time.monotonic() - began < 3
        assert recorded_groups(copy) == groups
    assert processes_of(groups) == []


@pytest.mark.slow
def test_a_recorded_pid_that_now_belongs_to_another_process_is_left_alone(
    state_dir: Path, running: Servers, tmp_path: Path
) -> None:
    copy = tmp_path / "servers"
    subprocess.run(["cp", "-r", str(state_dir), str(copy)], check=True)
    record = json.loads((copy / "servers.json").read_text())
    bystander = subprocess.Popen(["sleep", "300"], start_new_session=True)
    for server in record["servers"]:
        server["pid"] = bystander.pid  # with the creation time of the process that is gone
    (copy / "servers.json").write_text(json.dumps({**record, "users": []}))
    try:
        with local_servers(ServerSettings(state_dir=copy), say=lambda text: None) as servers:
            assert servers.mlflow_uri != running.mlflow_uri
            groups = recorded_groups(copy)
        assert processes_of(groups) == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["Ctrl-C", "a server that dies"])
def test_serving_lasts_until_ctrl_c_or_says_which_server_died(
    state_dir: Path, project: Path, running: Servers, tmp_path: Path, ending: str
) -> None:
    copy = tmp_path / "servers"
    subprocess.run(["cp", "-r", str(state_dir), str(copy)], check=True)
    (copy / "servers.json").unlink()
    command = [sys.executable, "-c", SERVE, str(copy)]
    holder = subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        for line in holder.stdout:
            if line.startswith("Ctrl-C"):
                break
        groups = recorded_groups(copy)
        if ending == "Ctrl-C":
            holder.send_signal(signal.SIGINT)
        else:
            for process in processes_of(groups[1:]):
                process.kill()
        _, errors = holder.communicate(timeout=30)
        assert processes_of(groups) == []
        if ending == "Ctrl-C":
            assert (holder.returncode, errors) == (0, "")
        else:
            assert holder.returncode == 1
            assert re.search(r"ServerError: The MLflow server \(pid \d+\) has ended unexpectedly", errors)
    finally:
        end(holder)
