"""Servers that `rlhf run` cannot start: which port or folder, who holds it, which key to change; nothing is left."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from short_runs import processes_in, rlhf, traces

from flows.servers.commands import USUAL_PORTS
from flows.servers.local import ServerSettings, local_servers
from flows.servers.process import ServerError, health_problem

HOLDER = """
import socket, sys, time
taken = [socket.create_server(("127.0.0.1", int(port))) for port in sys.argv[1:]]
print("listening", flush=True)
time.sleep(300)
"""


@pytest.fixture
def held_ports() -> Iterator[tuple[list[int], int]]:
    """Two ports on which another process listens, and its pid."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    command = [sys.executable, "-c", HOLDER, *map(str, ports)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "listening\n"
            yield ports, holder.pid
        finally:
            holder.kill()


def test_ports_that_another_process_holds_are_both_named_with_it_and_nothing_is_left(
    folder: Path, held_ports: tuple[list[int], int]
) -> None:
    (prefect, mlflow), holder = held_ports
    ended = rlhf(folder, "run", f"tracking.prefect_port={prefect}", f"tracking.mlflow_port={mlflow}")
    assert ended.returncode == 1
    assert f"Port {prefect} for Prefect cannot be used: it is held by pid {holder} (" in ended.stderr
    assert "Set tracking.prefect_port to another port, or to 0 for any free one" in ended.stderr
    assert f"Port {mlflow} for MLflow cannot be used: it is held by pid {holder} (" in ended.stderr
    assert "Set tracking.mlflow_port to another port" in ended.stderr
    assert traces(folder) <= {".servers", ".servers/servers.lock"}
    assert processes_in(folder) == []


@pytest.fixture
def held_usual_ports() -> Iterator[None]:
    """Somebody listens on 4200 and on 5000."""
    with ExitStack() as stack:
        for port in USUAL_PORTS.values():
            with suppress(OSError):  # somebody does already
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


@pytest.mark.slow  # starts both servers
def test_a_second_user_of_the_machine_gets_free_ports_is_told_why_and_finds_the_servers_again(
    tmp_path: Path, held_usual_ports: None
) -> None:
    said: list[str] = []
    settings = ServerSettings(state_dir=tmp_path, prefect_port=None, mlflow_port=None)
    with local_servers(settings, say=said.append) as servers:
        for title, url, usual in (("Prefect", servers.prefect_ui_url, 4200), ("MLflow", servers.mlflow_uri, 5000)):
            port = url.rpartition(":")[2]
            assert port != str(usual)
            told = f"{title} takes port {port}, since its usual port {usual} cannot be used: it is held by "
            assert [text for text in said if text.startswith(told)], said
            assert health_problem(f"{url}{'/api' if title == 'Prefect' else ''}/health") is None
        with local_servers(settings, say=said.append) as again:
            assert again == servers
            assert f"Using the Prefect server that runs at {servers.prefect_ui_url}." in said


def test_a_server_of_the_same_folder_that_no_record_names_is_not_doubled(tmp_path: Path) -> None:
    (tmp_path / "prefect").mkdir()
    holder = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 4200)); print('up', flush=True); time.sleep(300)"
    )
    command = [sys.executable, "-c", holder]
    with subprocess.Popen(command, cwd=tmp_path / "prefect", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as left:
        try:
            assert left.stdout is not None
            if not left.stdout.readline():
                pytest.skip("PORT 4200 OF THIS MACHINE IS TAKEN, so nobody of this test could listen there.")
            settings = ServerSettings(state_dir=tmp_path, prefect_port=None)
            refused = rf"A Prefect server of .*/prefect runs already, as pid {left.pid} on port 4200.*kill {left.pid}"
            with pytest.raises(ServerError, match=refused), local_servers(settings, say=print):
                pass
        finally:
            left.kill()


@pytest.mark.parametrize("variable", ["PREFECT_PORT", "MLFLOW_PORT"])
def test_make_passes_a_port_on(project: Path, variable: str) -> None:
    for target, command in (("demo", "rlhf run"), ("ui", "rlhf ui")):
        words = ["make", "--dry-run", "--assume-old=setup", target, f"{variable}=4321"]
        planned = subprocess.run(words, cwd=project, capture_output=True, text=True, check=True).stdout
        (line,) = [line for line in planned.splitlines() if command in line]
        assert line.endswith(f"--set tracking.{variable.lower()}=4321")


def test_a_state_folder_that_cannot_be_made_is_said_with_the_way_out(folder: Path) -> None:
    (folder / "outputs/.servers").touch()
    ended = rlhf(folder, "run")
    assert ended.returncode == 1
    assert f"{folder / 'outputs/.servers'}, where the servers keep their state, cannot be used" in ended.stderr
    assert "Start in a folder that can be written, or set tracking.prefect_api_url and " in ended.stderr


@pytest.mark.parametrize(
    ("variable", "key"),
    [("PREFECT_API_URL", "tracking.prefect_api_url"), ("MLFLOW_TRACKING_URI", "tracking.mlflow_uri")],
)
def test_an_address_of_the_environment_that_is_none_is_refused_without_its_password(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str, key: str
) -> None:
    monkeypatch.setenv(variable, "htp://me:secret@host/api")
    ended = rlhf(folder, "run")
    assert ended.returncode == 1
    assert f"{key}: `htp://host/api` is no http(s) address" in ended.stderr
    assert "secret" not in ended.stdout + ended.stderr
    assert traces(folder) == set()
