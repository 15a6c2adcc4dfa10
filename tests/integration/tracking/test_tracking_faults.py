"""MLflow lost, broken or slow at any moment: a run is hardly delayed, and in the end each point is there once."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from faults.fault_proxy import Fault, FaultProxy, fault_proxy
from mlflow import MlflowClient

from containers.contracts.names import StageName
from containers.harness.recorder import Recorder
from tasks.mlflow_sync.state_file import ENDED_TAG, PENDING_FOLDER
from tasks.mlflow_sync.tracking import Tracking
from tasks.store.events import EventFeed, MetricsDelivery

NUM_STEPS = 30
KEYS = ("loss", "grad_norm", "margin")
FAULTS: tuple[Fault, ...] = ("refuse", "hang", "error 500", "reset", "slow", "lose answers")


def run_with_fault(proxy: FaultProxy, folder: Path, fault: Fault, *, steps: range) -> tuple[str, float]:
    """One pipeline with one stage; the fault lasts while these steps are written, or to the end where the last is among
    them. Returns the stage's run or handle, and how long its end took."""
    proxy.fault = fault if 0 in steps else "none"
    events = folder / "events.jsonl"
    recorder = Recorder(events)
    tracking = Tracking(proxy.uri, output_dir=folder, experiment=folder.name, rest_after_failure_s=1.0)
    tracking.start_pipeline("pipeline", params={"seed": 1})
    run_id = tracking.start_stage(StageName.TRAIN_REWARD_MODEL, attempt=1)
    delivery = MetricsDelivery(tracking, run_id, interval_s=0.02, retry_s=0.5)
    feed = EventFeed(events, on_metrics=delivery.add)
    for step in range(1, NUM_STEPS + 1):
        if step == steps.start:
            proxy.fault = fault
        if step == steps.stop:
            proxy.fault = "none"
        recorder.metrics(step, dict.fromkeys(KEYS, step / 7))
        feed.poll()
        time.sleep(0.05)
    began = time.monotonic()
    delivery.close()
    delivery.reconcile(events)
    tracking.finish_stage(run_id, succeeded=True)
    tracking.finish_pipeline("FINISHED")
    return run_id, time.monotonic() - began


def assert_told_once(uri: str, experiment: str) -> None:
    """Both runs ended well, and the stage has each point exactly once."""
    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    runs = {run.info.run_name: run for run in client.search_runs([found.experiment_id])}
    assert sorted(runs) == ["pipeline", "train_reward_model"]
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for key in KEYS:
        history = client.get_metric_history(runs["train_reward_model"].info.run_id, key)
        assert sorted(item.step for item in history) == list(range(1, NUM_STEPS + 1)), key


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "steps",
    [pytest.param(range(15), id="at the start"), pytest.param(range(10, 20), id="in the middle")],
)
def test_a_fault_that_passes_costs_no_point(mlflow_uri: str, tmp_path: Path, fault: Fault, steps: range) -> None:
    with fault_proxy(mlflow_uri) as proxy:
        _, delay_s = run_with_fault(proxy, tmp_path, fault, steps=steps)
        assert proxy.num_faults or fault == "refuse"
    Tracking(mlflow_uri, output_dir=tmp_path, experiment=tmp_path.name).deliver_pending()
    assert_told_once(mlflow_uri, tmp_path.name)
    assert delay_s < 30


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_to_the_end_delays_it_by_less_than_half_a_minute_and_the_next_run_tells_it_all(
    mlflow_uri: str, tmp_path: Path, fault: Fault
) -> None:
    with fault_proxy(mlflow_uri) as proxy:
        _, delay_s = run_with_fault(proxy, tmp_path, fault, steps=range(20, NUM_STEPS + 1))
    assert delay_s < 30
    assert list((tmp_path / PENDING_FOLDER).glob("*.json"))
    assert Tracking(mlflow_uri, output_dir=tmp_path, experiment=tmp_path.name).deliver_pending() == 0
    assert_told_once(mlflow_uri, tmp_path.name)


def test_one_refused_value_costs_that_value_only(mlflow_uri: str, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    recorder = Recorder(events)
    with fault_proxy(mlflow_uri) as proxy:
        proxy.refused_text = "odd"
        tracking = Tracking(proxy.uri, output_dir=tmp_path)
        tracking.start_pipeline("refused")
        run_id = tracking.start_stage(StageName.TRAIN_SFT, attempt=1)
        proxy.fault = "refuse a value"
        for step in range(1, 11):
            recorder.metrics(step, {"loss": 1.0, "odd": 2.0})
        tracking.log_params(run_id, {"seed": 1, "odd": 2, "lr": 3})
        assert tracking.reconcile(run_id, events).pending == 0
        tracking.finish_stage(run_id, succeeded=True)
        tracking.finish_pipeline("FINISHED")
    client = MlflowClient(mlflow_uri)
    assert len(client.get_metric_history(run_id, "loss")) == 10
    assert client.get_run(run_id).data.params == {"seed": "1", "lr": "3"}
    assert len(tracking.refused) == 2
    assert all("odd" in reason for reason in tracking.refused)


def test_a_message_that_always_fails_does_not_hold_up_the_others(mlflow_uri: str, tmp_path: Path) -> None:
    with fault_proxy(mlflow_uri) as proxy:
        tracking = Tracking(proxy.uri, output_dir=tmp_path, rest_after_failure_s=0.1)
        tracking.start_pipeline("poisoned")
        run_id = tracking.start_stage(StageName.TRAIN_SFT, attempt=1)
        proxy.refused_text, proxy.refused_status = "poison", 500
        proxy.fault = "refuse a value"
        tracking.set_tags(run_id, {"poison": "yes"})
        time.sleep(0.2)
        tracking.set_tags(run_id, {"good": "yes"})
        tracking.finish_stage(run_id, succeeded=True)
        tracking.finish_pipeline("FINISHED")
        assert tracking.pending == 1
    run = MlflowClient(mlflow_uri).get_run(run_id)
    assert (run.info.status, run.data.tags["good"]) == ("FINISHED", "yes")
    assert Tracking(mlflow_uri, output_dir=tmp_path).deliver_pending() == 0
    assert MlflowClient(mlflow_uri).get_run(run_id).data.tags["poison"] == "yes"


def _open_and_hang(uri: str, folder: Path) -> None:
    tracking = Tracking(uri, output_dir=folder, experiment="killed")
    tracking.start_pipeline("killed")
    tracking.finish_stage(tracking.start_stage(StageName.TRAIN_SFT, attempt=1), succeeded=True)
    tracking.start_stage(StageName.TRAIN_POLICY, attempt=1)
    (folder / "ready").touch()
    time.sleep(300)


def test_runs_that_a_killed_process_left_open_are_closed_as_killed_by_the_next(mlflow_uri: str, tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_open_and_hang, args=(mlflow_uri, tmp_path))
    process.start()
    while not (tmp_path / "ready").exists():
        assert process.is_alive()
        time.sleep(0.05)
    alongside = Tracking(mlflow_uri, output_dir=tmp_path, experiment="killed")  # the other one lives: nothing is taken
    alongside.start_pipeline("alongside")
    alongside.finish_pipeline("FINISHED")
    assert statuses(mlflow_uri) == {
        "killed": "RUNNING",
        "train_sft": "FINISHED",
        "train_policy": "RUNNING",
        "alongside": "FINISHED",
    }
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    later = Tracking(mlflow_uri, output_dir=tmp_path, experiment="killed")
    later.start_pipeline("later")
    later.finish_pipeline("FINISHED")
    assert statuses(mlflow_uri) == {
        "killed": "KILLED",
        "train_sft": "FINISHED",
        "train_policy": "KILLED",
        "alongside": "FINISHED",
        "later": "FINISHED",
    }
    assert not (tmp_path / PENDING_FOLDER).exists()


def statuses(uri: str) -> dict[str, str]:
    """Name → status of the runs of the experiment `killed`; the killed ones say who closed them."""
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("killed").experiment_id])
    assert all(ENDED_TAG in run.data.tags for run in runs if run.info.status == "KILLED")
    return {run.info.run_name: run.info.status for run in runs}
