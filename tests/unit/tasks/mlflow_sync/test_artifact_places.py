"""Files for MLflow go to its own server or an object store: the address that a server answers is not believed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.recording_server import RecordingServer
from mlflow import MlflowClient

from tasks.champions.registry import Registry
from tasks.mlflow_sync.artifact_places import OtherPlaceError, require_own_place
from tasks.mlflow_sync.outbox import Outbox
from tasks.mlflow_sync.parts import send_part
from tasks.mlflow_sync.undelivered import FileSource, UndeliveredRun
from tests.unit.factories.champion_factory import make_book

pytestmark = pytest.mark.waits

RUN, MODEL = "a1" * 16, "m-" + "b2" * 16
OWN = "http://mlflow.example.org:5000"


@pytest.fixture(autouse=True)
def _login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "team")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "canary-41d7")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.fixture
def stranger() -> Iterator[RecordingServer]:
    with RecordingServer() as server:
        yield server


@pytest.fixture
def tracking_server() -> Iterator[RecordingServer]:
    with RecordingServer() as server:
        yield server


def name_place(server: RecordingServer, place: str) -> None:
    """Let the server answer that place to whatever it is asked about runs, models and experiments."""
    times = {"creation_timestamp_ms": 1, "last_updated_timestamp_ms": 1}
    info = {"run_id": RUN, "run_uuid": RUN, "experiment_id": "1", "status": "RUNNING", "start_time": 1}
    model_info = {"model_id": MODEL, "experiment_id": "1", "name": "m", "artifact_uri": place, "status": 1, **times}
    version = {"name": "demo-reward-model", "version": "1", "creation_timestamp": 1, "last_updated_timestamp": 1}
    answer = {
        "run": {"info": {**info, "lifecycle_stage": "active", "artifact_uri": place}, "data": {}},
        "model": {"info": model_info, "data": {}},
        "experiment": {"experiment_id": "1", "name": "demo", "artifact_location": place, "lifecycle_stage": "active"},
        "registered_model": {"name": "demo-reward-model", "creation_timestamp": 1, "last_updated_timestamp": 1},
        "model_version": version,
    }
    server.answer = json.dumps(answer)


def send_text(client: MlflowClient, file: str) -> None:
    run = UndeliveredRun(handle=RUN, run_id=RUN, files={file: FileSource(text="a text")})
    for part in run.parts():
        send_part(client, run, part, sent={})


def places(stranger: RecordingServer, folder: Path) -> list[str]:
    host = stranger.url.removeprefix("http://")
    return [f"{stranger.url}/x", f"mlflow-artifacts://{host}/x", folder.as_uri(), f"file:{folder}", str(folder)]


@pytest.mark.parametrize("which", range(5))
def test_a_place_that_is_not_the_servers_own_gets_neither_login_nor_file(
    tracking_server: RecordingServer, stranger: RecordingServer, tmp_path: Path, which: int
) -> None:
    outside = tmp_path / "outside"
    place = places(stranger, outside)[which]
    name_place(tracking_server, f"{place}/{RUN}/artifacts")
    (tmp_path / "data.json").write_text("{}")
    outbox = Outbox(tracking_server.url, folder=tmp_path / "waiting", request_timeout_s=5, rest_after_failure_s=60.0)
    with outbox.change(RUN) as run:
        run.files["config/run.yaml"] = FileSource(text="a text")
    with outbox.change(RUN) as run:
        run.files["data.json"] = FileSource(path=str(tmp_path / "data.json"))
    assert stranger.requests == [] and not outside.exists()
    assert outbox.pending == 0
    (reason,) = outbox.refused
    assert f"{tracking_server.url} names {place} as their place." in reason and "--artifacts-destination" in reason
    assert len(tracking_server.requests) == 1, "one question for each run, not for each file"


@pytest.mark.parametrize("which", range(5))
def test_the_registry_shows_a_champion_without_files_where_their_place_is_not_the_servers_own(
    tracking_server: RecordingServer, stranger: RecordingServer, tmp_path: Path, which: int
) -> None:
    outside = tmp_path / "outside"
    place = places(stranger, outside)[which]
    name_place(tracking_server, f"{place}/models/{MODEL}/artifacts")
    book = make_book(tmp_path / "store", num_versions=1, champions=(1,))
    problem = Registry(tracking_server.url, experiment="demo").reconcile(book, book.read())
    assert stranger.requests == [] and not outside.exists()
    assert "without the files of version 1" in problem and f"names {place}" in problem


@pytest.mark.parametrize("scheme", ["mlflow-artifacts:/1", "mlflow-artifacts://{host}/1", "http://{host}/1"])
def test_the_servers_own_place_gets_the_file(tracking_server: RecordingServer, tmp_path: Path, scheme: str) -> None:
    name_place(tracking_server, scheme.format(host=tracking_server.url.removeprefix("http://")) + "/files")
    send_text(MlflowClient(tracking_server.url), "config/run.yaml")
    sent = [item["path"] for item in tracking_server.requests if item["method"] == "PUT"]
    assert len(sent) == 1 and sent[0].endswith("/1/files/config/run.yaml")


def test_a_server_that_changes_its_answer_is_not_asked_again(
    tracking_server: RecordingServer, stranger: RecordingServer
) -> None:
    name_place(tracking_server, "mlflow-artifacts:/1")
    client = MlflowClient(tracking_server.url)
    send_text(client, "one.txt")
    name_place(tracking_server, f"{stranger.url}/x")
    send_text(client, "two.txt")
    assert stranger.requests == []


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("mlflow-artifacts:/1", True),
        ("mlflow-artifacts://MLflow.example.org:5000/1", True),
        ("http://mlflow.example.org:5000/api/2.0/mlflow-artifacts/artifacts/1", True),
        ("s3://bucket/1", True),
        ("gs://bucket/1", True),
        ("abfss://files@account.dfs.core.windows.net/1", True),
        ("wasbs://files@account.blob.core.windows.net/1", True),
        ("abfss://files@account.evil.org/1", False),
        ("abfss://files@evil.org#@account.dfs.core.windows.net/1", False),
        ("mlflow-artifacts://mlflow.example.org/1", False),
        ("https://mlflow.example.org:5000/1", False),
        ("http://mlflow.example.org:5001/1", False),
        ("http://mlflow.example.org:5000@evil.org/1", False),
        ("http://evil.org\\@mlflow.example.org:5000/1", False),
        ("http://mlflow.example.org:5000\t.evil.org/1", False),
        (" file:///home/ada", False),
        ("file:///home/ada", False),
        ("FILE:/home/ada", False),
        ("/home/ada", False),
        ("home/ada", False),
        ("", False),
        ("http://[mlflow/1", False),
        ("sftp://mlflow.example.org:5000/1", False),
        ("runs:/1/x", False),
        ("databricks://profile@host/1", False),
    ],
)
def test_own_places_and_others(address: str, may: bool) -> None:
    require_own_place("sqlite:///mlflow.db", address)
    if may:
        require_own_place(OWN, address)
        return
    with pytest.raises(OtherPlaceError, match="as their place"):
        require_own_place(OWN, address)


def test_the_message_shows_no_login() -> None:
    with pytest.raises(OtherPlaceError) as caught:
        require_own_place("http://team:canary@mlflow.example.org", "http://ada:canary@evil.org/x")
    assert "canary" not in str(caught.value)
