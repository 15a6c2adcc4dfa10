"""The run begins while MLflow still comes up: nothing that it says meanwhile may be missing, and an MLflow that cannot
start ends nothing: the next run tells it.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from curve_files import history, one_point_each, record_steps
from mlflow import MlflowClient
from mlflow_server import MlflowServer
from short_runs import processes_in, rlhf

from containers.contracts.names import StageName
from flows.servers.local import Servers, ServerSettings, local_servers
from flows.servers.process import health_problem
from flows.servers.start import WITHOUT_MLFLOW, BackgroundStart
from tasks.mlflow_sync.start import MlflowStart, install_mlflow_start
from tasks.mlflow_sync.tracking import Tracking
from tasks.store.events import read_points


@pytest.fixture
def late_mlflow(tmp_path: Path) -> Iterator[MlflowServer]:
    """A server that is not started yet, on whose start the process counts."""
    server = MlflowServer(tmp_path / "servers")

    def is_up(given_up: object) -> bool:
        while health_problem(f"{server.uri}/health") is not None:
            time.sleep(0.1)
        return True

    install_mlflow_start(BackgroundStart(is_up, say=lambda text: None))
    try:
        yield server
    finally:
        install_mlflow_start(MlflowStart())
        server.stop()


def test_what_was_said_before_the_server_was_up_is_complete_afterwards(
    late_mlflow: MlflowServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = tmp_path / "events.jsonl"
    record_steps(events, range(1, 51))
    tracking = Tracking(late_mlflow.uri, output_dir=tmp_path / "run")
    seen_up: list[str] = []
    tracking.start_pipeline("early", tags={"rlhf.run_id": "1"}, params={"seed": 7})
    tracking.once_up(lambda: seen_up.append(tracking.run_url(tracking.pipeline_run_id)))
    stage = tracking.start_stage(StageName.FILTER_DATASET, attempt=1)
    assert tracking.reconcile(stage, events).pending == 50
    tracking.log_text(stage, "hello", "note.txt")
    assert tracking.run_url(stage) == ""
    assert seen_up == []
    assert not caplog.records, "a server that is on its way up is no server that is away"

    tracking.catch_up()
    assert tracking.run_url(stage) == "", "it waits for no start"
    late_mlflow.start()
    tracking.wait_for_server()
    assert seen_up == [tracking.run_url(tracking.pipeline_run_id)]
    assert tracking.real_id(stage) in tracking.run_url(stage)
    tracking.finish_stage(stage, succeeded=True)
    tracking.finish_pipeline("FINISHED")
    assert tracking.pending == 0

    client = MlflowClient(tracking_uri=late_mlflow.uri)
    parent, child = client.get_run(tracking.pipeline_run_id), client.get_run(tracking.real_id(stage))
    assert (parent.data.params["seed"], parent.data.tags["rlhf.run_id"]) == ("7", "1")
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert [run.info.status for run in (parent, child)] == ["FINISHED", "FINISHED"]
    assert history(late_mlflow.uri, child.info.run_id) == one_point_each(range(1, 51))
    assert [file.path for file in client.list_artifacts(child.info.run_id)] == ["note.txt"]
    assert len(client.search_runs([parent.info.experiment_id])) == 2


def test_a_run_that_ends_before_the_server_is_up_still_tells_it(late_mlflow: MlflowServer, tmp_path: Path) -> None:
    tracking = Tracking(late_mlflow.uri, output_dir=tmp_path / "run")
    tracking.start_pipeline("short")
    late_mlflow.start()
    tracking.finish_pipeline("FAILED")
    assert tracking.pending == 0
    assert MlflowClient(tracking_uri=late_mlflow.uri).get_run(tracking.pipeline_run_id).info.status == "FAILED"


@pytest.mark.slow  # starts both servers
def test_the_block_begins_when_prefect_answers_and_mlflow_follows(tmp_path: Path) -> None:
    told: list[Servers] = []
    with local_servers(ServerSettings(state_dir=tmp_path), say=lambda text: None, meanwhile=told.append) as servers:
        assert told == [servers]
        assert health_problem(f"{servers.prefect_api_url}/health") is None
        servers.mlflow_start.wait()
        assert servers.mlflow_start.is_up
        assert health_problem(f"{servers.mlflow_uri}/health") is None
        with local_servers(ServerSettings(state_dir=tmp_path), say=lambda text: None, meanwhile=told.append) as second:
            assert second == servers
            assert second.mlflow_start.is_up
    assert processes_in(tmp_path) == []


@pytest.mark.slow  # starts both servers
def test_an_end_before_mlflow_is_up_leaves_nothing_behind(tmp_path: Path) -> None:
    with local_servers(ServerSettings(state_dir=tmp_path), say=lambda text: None, meanwhile=lambda servers: None):
        pass
    assert processes_in(tmp_path) == []
    assert not (tmp_path / "servers.json").exists()


def spoil_database(folder: Path) -> Path:
    """Leave a file in the place of MLflow's database that is none."""
    database = folder / "outputs/.servers/mlflow/mlflow.db"
    database.parent.mkdir(parents=True)
    database.write_text("this is no database" * 100)
    return database


@pytest.mark.slow  # trains
def test_an_mlflow_that_cannot_start_does_not_end_the_run_and_is_told_by_the_next(folder: Path) -> None:
    database = spoil_database(folder)
    trains = ("run.until=train_sft", "train_sft.schedule={max_steps: 6, eval_steps: 3, save_steps: 3}")
    ended = rlhf(folder, "run", *trains)
    assert ended.returncode == 0, ended.stdout
    assert "The MLflow server does not start: its database" in ended.stdout
    assert f"Its log: {database.parent / 'server.log'}" in ended.stdout
    assert ended.stdout.count(WITHOUT_MLFLOW) == 1
    assert re.search(r"was not told everything: \d+ parts of runs with \d+ points wait on disk", ended.stdout)
    report = json.loads(next((folder / "outputs").glob("*/reports/*/pipeline.json")).read_text())
    assert report["stopped_because"] == ""
    (events,) = (folder / "outputs/store/work/train_sft").glob("*/events.jsonl")
    assert processes_in(folder) == []

    database.unlink()
    again = rlhf(folder, "run", *trains)
    assert again.returncode == 0, again.stdout
    with local_servers(ServerSettings(state_dir=folder / "outputs/.servers"), say=lambda text: None) as servers:
        client = MlflowClient(tracking_uri=servers.mlflow_uri)
        experiment = client.get_experiment_by_name("rlhf-flows")
        assert experiment is not None
        made = "tags.`rlhf.stage` = 'train_sft' and tags.`rlhf.attempt` = '1'"
        (run,) = client.search_runs([experiment.experiment_id], made)
        points = {(point.key, point.step, point.value) for point in read_points(events)}
        keys = {key for key, _, _ in points}
        told = {(key, *point) for key in keys for point in history(servers.mlflow_uri, run.info.run_id, key)}
    assert run.info.status == "FINISHED"
    assert told == points
    assert {step for _, step, _ in points} == set(range(1, 7))


@pytest.mark.slow  # starts both servers
@pytest.mark.parametrize("spoilt", ["log", "folder"])
def test_an_mlflow_whose_process_cannot_even_be_started_does_not_end_the_block(tmp_path: Path, spoilt: str) -> None:
    """Its folder cannot be used: a full or read-only disk, or a file in its place."""
    if spoilt == "folder":
        (tmp_path / "mlflow").touch()
    else:
        (tmp_path / "mlflow/server.log").mkdir(parents=True)
    said: list[str] = []
    with local_servers(ServerSettings(state_dir=tmp_path), say=said.append, meanwhile=lambda servers: None) as servers:
        servers.mlflow_start.wait()
        assert not servers.mlflow_start.is_up
        assert "The MLflow server cannot be started" in servers.mlflow_start.problem
        assert health_problem(f"{servers.prefect_api_url}/health") is None
    assert any(WITHOUT_MLFLOW in text for text in said)
    assert processes_in(tmp_path) == []
