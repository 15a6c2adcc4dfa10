"""Against MLflow servers that die, hang or are broken: they cost a run seconds, and what they missed is told later."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from curve_files import history, one_point_each, record_steps
from mlflow import MlflowClient

from containers.contracts.names import StageName
from tasks.mlflow_sync.state_file import PENDING_FOLDER
from tasks.mlflow_sync.tracking import Tracking
from tasks.store.events import EventFeed, MetricPoint, MetricsDelivery

if TYPE_CHECKING:
    from mlflow_server import MlflowServer


def test_a_server_killed_in_mid_run_costs_seconds_and_no_point(mortal_mlflow: "MlflowServer", tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    tracking = Tracking(mortal_mlflow.uri, output_dir=tmp_path)
    tracking.start_pipeline("killed")
    run_id = tracking.start_stage(StageName.TRAIN_POLICY, attempt=1)
    delivery = MetricsDelivery(tracking, run_id, interval_s=0.05)
    feed = EventFeed(events, on_metrics=delivery.add)
    record_steps(events, range(1, 11))
    feed.poll()
    time.sleep(0.5)
    mortal_mlflow.stop()

    began = time.monotonic()
    record_steps(events, range(11, 31))
    feed.poll()
    assert delivery.close() == 20
    assert delivery.reconcile(events) == (30, 0, 20, 0)
    tracking.log_text(run_id, "evidence", "failure.txt")
    tracking.finish_stage(run_id, succeeded=True)
    after = tracking.start_stage(StageName.EVALUATE_POLICY, attempt=1)
    tracking.finish_stage(after, succeeded=True)
    tracking.finish_pipeline("FINISHED")
    assert time.monotonic() - began < 10
    assert tracking.pending_points == 20
    assert tracking.pending == 7
    assert list((tmp_path / PENDING_FOLDER).glob("*.json"))
    record_steps(events, range(31, 40))  # a later attempt writes into the same file

    mortal_mlflow.start()
    assert Tracking(mortal_mlflow.uri, output_dir=tmp_path).deliver_pending() == 0  # another process
    assert not list((tmp_path / PENDING_FOLDER).glob("*.json"))
    assert history(mortal_mlflow.uri, run_id) == one_point_each(range(1, 31))
    runs = MlflowClient(mortal_mlflow.uri).search_runs(["1"])
    assert {run.info.run_name: run.info.status for run in runs} == {
        "killed": "FINISHED",
        "train_policy": "FINISHED",
        "evaluate_policy": "FINISHED",
    }
    parents = {run.data.tags.get("mlflow.parentRunId") for run in runs if run.info.run_name != "killed"}
    assert parents == {tracking.pipeline_run_id}


def test_a_server_that_comes_after_the_start_is_told_everything_once(
    mortal_mlflow: "MlflowServer", tmp_path: Path
) -> None:
    mortal_mlflow.stop()
    tracking = Tracking(mortal_mlflow.uri, output_dir=tmp_path, rest_after_failure_s=0.1)
    tracking.start_pipeline("early", params={"seed": 1})
    run_id = tracking.start_stage(StageName.TRAIN_SFT, attempt=1)
    assert tracking.run_url(run_id) == ""
    assert not tracking.send_points(run_id, (MetricPoint("loss", 1.0, 1, 1),))
    mortal_mlflow.start()
    time.sleep(0.2)
    tracking.finish_stage(run_id, succeeded=True)
    tracking.finish_pipeline("FINISHED")
    runs = {run.info.run_name: run for run in MlflowClient(mortal_mlflow.uri).search_runs(["1"])}
    assert sorted(runs) == ["early", "train_sft"]
    assert runs["early"].data.params == {"seed": "1"}
    assert runs["train_sft"].data.tags["mlflow.parentRunId"] == runs["early"].info.run_id
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert runs["train_sft"].info.run_id in tracking.run_url(run_id)
    assert tracking.pending == 0


class BrokenServer(BaseHTTPRequestHandler):
    """Answers 500 to everything."""

    def do_GET(self) -> None:
        self.send_error(500)

    def do_POST(self) -> None:
        self.send_error(500)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(params=["refuses", "hangs", "answers 500"])
def sick_uri(request: pytest.FixtureRequest) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        if request.param == "hangs":
            listener.listen(100)  # connections are taken, and never answered
            yield f"http://127.0.0.1:{port}"
            return
    if request.param == "refuses":
        yield f"http://127.0.0.1:{port}"
        return
    server = ThreadingHTTPServer(("127.0.0.1", 0), BrokenServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_sick_server_delays_a_whole_run_by_seconds_and_raises_nothing(sick_uri: str, tmp_path: Path) -> None:
    began = time.monotonic()
    events = tmp_path / "events.jsonl"
    record_steps(events, range(1, 31))
    tracking = Tracking(sick_uri, output_dir=tmp_path, request_timeout_s=2)
    tracking.start_pipeline("sick", params={"seed": 1})
    for stage in (StageName.FILTER_DATASET, StageName.TRAIN_SFT, StageName.TRAIN_REWARD_MODEL):
        run_id = tracking.start_stage(stage, attempt=1)
        delivery = MetricsDelivery(tracking, run_id, interval_s=0.05)
        EventFeed(events, on_metrics=delivery.add).poll()
        delivery.close()
        assert delivery.reconcile(events).pending == 30
        tracking.log_artifact_folder(run_id, tmp_path)
        tracking.finish_stage(run_id, succeeded=True)
    tracking.finish_pipeline("FINISHED")
    assert time.monotonic() - began < 10
    assert tracking.pending_points == 90
