"""A server that names a place of its choice for our files gets neither the login sent elsewhere nor a file written."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.recording_server import RecordingServer
from mlflow import MlflowClient

from tasks.artifact_places import artifact_place, is_own_place
from tasks.mlflow_operations import LogFile, LogText
from tasks.mlflow_sending import RefusedError

RUN = "r" * 32


@contextmanager
def mlflow_that_names(place: str) -> Iterator[str]:
    """The address of a server that answers every question with a run whose files go there."""
    info = {"run_id": RUN, "experiment_id": "1", "status": "RUNNING", "artifact_uri": place, "user_id": "x"}
    answer = json.dumps({"run": {"info": {**info, "start_time": 1, "lifecycle_stage": "active"}, "data": {}}}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(params=["text", "file"])
def record(request: pytest.FixtureRequest, tmp_path: Path) -> LogText | LogFile:
    (tmp_path / "run.yaml").write_text("t")
    if request.param == "text":
        return LogText(run="x", text="t", file="config/run.yaml")
    return LogFile(run="x", path=str(tmp_path / "run.yaml"), folder="config")


@pytest.mark.parametrize("address", [lambda url: f"{url}/steal", lambda url: f"mlflow-artifacts://{url[7:]}/steal"])
def test_the_login_goes_to_no_address_that_the_server_names(
    monkeypatch: pytest.MonkeyPatch, record: LogText | LogFile, address: Callable[[str], str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "team")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "another-long-one")
    with RecordingServer() as stranger, mlflow_that_names(address(stranger.url)) as uri:
        with pytest.raises(RefusedError, match="neither its own place nor an object store; nothing was sent"):
            record.send(MlflowClient(uri), RUN)
        assert stranger.requests == []


def test_no_file_is_written_where_the_server_says(tmp_path: Path, record: LogText | LogFile) -> None:
    victim = tmp_path / "home"
    for place in (victim.as_uri(), str(victim)):
        with mlflow_that_names(place) as uri, pytest.raises(RefusedError, match="home"):
            record.send(MlflowClient(uri), RUN)
    assert not victim.exists()


def test_a_registered_model_goes_to_no_such_place_either(tmp_path: Path) -> None:
    client: Any = SimpleNamespace(tracking_uri="http://127.0.0.1:5000")
    with pytest.raises(RefusedError):
        artifact_place(client, tmp_path.as_uri())


@pytest.mark.parametrize(
    ("server", "place", "is_own"),
    [
        ("http://box:5000", "mlflow-artifacts:/1/abc/artifacts", True),
        ("http://box:5000", "mlflow-artifacts://box:5000/1/abc", True),
        ("http://box:5000", "http://BOX:5000/api/2.0/mlflow-artifacts/artifacts/1", True),
        ("https://box", "mlflow-artifacts://box:443/1", True),
        ("http://box:5000", "s3://bucket/1", True),
        ("sqlite:///outputs/mlflow.db", "file:///data/mlruns/1", True),
        ("sqlite:///outputs/mlflow.db", "outputs/mlruns/1", True),
        ("http://box:5000", "mlflow-artifacts://box:5001/1", False),
        ("http://box:5000", "https://box:5000/1", False),
        ("http://box:5000", "http://box:5000@evil.org/1", False),
        ("http://box:5000", "file:///home/ada", False),
        ("http://box:5000", "/home/ada", False),
        ("http://box:5000", "C:\\Users\\ada", False),
        ("http://box:5000", "ftp://box/1", False),
        ("http://box:5000", "dbfs:/1", False),
        ("http://box:5000", "", False),
    ],
)
def test_which_place_is_a_servers_own(server: str, place: str, is_own: bool) -> None:
    assert is_own_place(server, place) is is_own
