"""Servers that `rlhf run` cannot start: which port or folder, who holds it, which key to change; nothing is left."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from short_runs import processes_in, rlhf, traces

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
