"""What is sent to MLflow twice, or whose answer was lost, makes each row of its database once."""

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from curve_files import record_steps
from faults.fault_proxy import fault_proxy

from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.spec import StageInput
from tasks.mlflow_sync.state_file import PENDING_FOLDER
from tasks.mlflow_sync.tracking import Tracking

if TYPE_CHECKING:
    from mlflow_server import MlflowServer

NUM_STEPS = 30
# Rows of a run with one stage: two runs; 30 points, and the accuracy with the two ends of its interval.
EXPECTED = {"runs": 2, "metrics": NUM_STEPS + 3, "latest_metrics": 4, "params": 1, "datasets": 1, "inputs": 1}


@pytest.fixture
def rows(mortal_mlflow: "MlflowServer", tmp_path: Path) -> "Rows":
    return Rows(tmp_path / "servers/mlflow/mlflow.db")


class Rows:
    """The rows that the server's database got since this was made."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._before = self._counts()

    def added(self) -> dict[str, int]:
        return {table: count - self._before[table] for table, count in self._counts().items()}

    def _counts(self) -> dict[str, int]:
        with sqlite3.connect(self._database) as connection:
            return {
                table: connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]  # noqa: S608
                for table in (*EXPECTED, "tags", "input_tags")
            }


def waiting_run(uri: str, folder: Path) -> Tracking:
    """A pipeline run with one stage that ended while the server did not answer."""
    record_steps(folder / "events.jsonl", range(1, NUM_STEPS + 1))
    (folder / "notes.txt").write_text("hello")
    tracking = Tracking(uri, output_dir=folder, request_timeout_s=2)
    tracking.start_pipeline("waiting", params={"seed": 1}, tags={"purpose": "test"})
    run = tracking.start_stage(StageName.TRAIN_REWARD_MODEL, attempt=1)
    digest = "sha256:" + "ab" * 32
    tracking.log_inputs(run, (StageInput(name="pairs", path="/data/pairs", digest=digest, origin="somewhere"),))
    tracking.reconcile(run, folder / "events.jsonl")
    tracking.log_final_metrics(run, (Metric(name="accuracy", value=0.9, unit="fraction", ci_low=0.8, ci_high=0.95),))
    tracking.log_file(run, folder / "notes.txt")
    tracking.finish_stage(run, succeeded=True)
    tracking.finish_pipeline("FINISHED")
    assert tracking.pending > 8
    return tracking


def test_everything_sent_twice_is_there_once(mortal_mlflow: "MlflowServer", tmp_path: Path, rows: Rows) -> None:
    mortal_mlflow.stop()
    waiting_run(mortal_mlflow.uri, tmp_path)
    mortal_mlflow.start()
    (waiting,) = (tmp_path / PENDING_FOLDER).glob("*.json")
    content = waiting.read_bytes()
    assert Tracking(mortal_mlflow.uri, output_dir=tmp_path).deliver_pending() == 0
    once = rows.added()
    assert EXPECTED.items() <= once.items()

    # As if the process had been killed after the delivery, and before it could say so on disk.
    waiting.parent.mkdir(exist_ok=True)
    waiting.write_bytes(content)
    waiting.with_suffix(".lock").touch()
    again = Tracking(mortal_mlflow.uri, output_dir=tmp_path)
    assert again.pending > 8
    assert again.deliver_pending() == 0
    assert again.refused == ()
    assert rows.added() == once


def test_a_write_that_arrived_and_whose_answer_was_lost_is_there_once(
    mortal_mlflow: "MlflowServer", tmp_path: Path, rows: Rows
) -> None:
    with fault_proxy(mortal_mlflow.uri, fault="refuse") as proxy:
        tracking = waiting_run(proxy.uri, tmp_path)
        num_parts = tracking.pending
        proxy.fault = "lose each answer once"
        heir = Tracking(proxy.uri, output_dir=tmp_path)
        for _ in range(10 * num_parts):  # each time, it gets as far as the next new request
            if not heir.deliver_pending():
                break
        assert heir.pending == 0
        assert proxy.num_faults > num_parts
    assert heir.refused == ()
    clean = tmp_path / "clean"
    clean.mkdir()
    with_faults, later = rows.added(), Rows(tmp_path / "servers/mlflow/mlflow.db")
    assert EXPECTED.items() <= with_faults.items()
    mortal_mlflow.stop()
    waiting_run(mortal_mlflow.uri, clean)
    mortal_mlflow.start()
    assert Tracking(mortal_mlflow.uri, output_dir=clean).deliver_pending() == 0
    assert later.added() | {"datasets": 1} == with_faults  # both runs have the same dataset
