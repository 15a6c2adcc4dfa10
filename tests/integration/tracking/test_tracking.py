"""Against a real MLflow server: what a run's page shows is complete and true."""

import json
import math
import time
from pathlib import Path

import pytest
from curve_files import history, one_point_each, record_steps
from mlflow import MlflowClient

from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.hardware import BatchPlan, GpuProfile, RequiredContract
from containers.contracts.manifest import LineageEntry
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.spec import StageInput, StageSpec
from containers.harness.recorder import Recorder
from tasks.mlflow_sync.pages import runs_page
from tasks.mlflow_sync.tracking import Tracking
from tasks.store.events import EventFeed, MetricPoint, MetricsDelivery, read_points

DIGEST = "sha256:" + "ab" * 32


@pytest.fixture
def tracking(mlflow_uri: str, tmp_path: Path) -> Tracking:
    made = Tracking(mlflow_uri, output_dir=tmp_path)
    made.start_pipeline("a-test", tags={"rlhf.purpose": "test"}, params={"run": {"seed": 7}})
    return made


@pytest.fixture
def stage_run(tracking: Tracking) -> str:
    return tracking.start_stage(StageName.TRAIN_REWARD_MODEL, attempt=1)


def test_the_figures_that_runs_are_compared_by_stand_on_the_parent_run(tracking: Tracking) -> None:
    tracking.log_headline({"reward_model/accuracy/test": 0.75, "policy/win_rate": 0.5})
    run = MlflowClient(tracking.uri).get_run(tracking.pipeline_run_id)
    assert run.data.metrics == {"reward_model/accuracy/test": 0.75, "policy/win_rate": 0.5}


def test_a_stage_is_a_child_of_the_pipeline_and_both_end(tracking: Tracking, stage_run: str) -> None:
    failed = tracking.start_stage(StageName.TRAIN_POLICY, attempt=2)
    tracking.finish_stage(stage_run, succeeded=True)
    tracking.finish_stage(failed, succeeded=False)
    tracking.finish_pipeline("FAILED")
    client = MlflowClient(tracking.uri)
    parent, child = client.get_run(tracking.pipeline_run_id), client.get_run(stage_run)
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (parent.info.run_name, child.info.run_name) == ("a-test", "train_reward_model")
    assert parent.data.params == {"run.seed": "7"}
    assert [run.info.status for run in (parent, child, client.get_run(failed))] == ["FAILED", "FINISHED", "FAILED"]
    assert client.get_run(failed).data.tags["rlhf.attempt"] == "2"
    page = f"{tracking.uri}/#/experiments/{child.info.experiment_id}/runs/{stage_run}"
    assert tracking.run_url(stage_run) == f"{page}?workflowType=machine_learning"
    assert tracking.file_url(stage_run, "a/b.html") == f"{page}/artifacts/a/b.html?workflowType=machine_learning"
    table = f"{tracking.uri}/#/experiments/{child.info.experiment_id}/runs?workflowType=machine_learning"
    assert runs_page(tracking.uri, client.get_experiment(child.info.experiment_id).name) == table
    assert (tracking.pending, tracking.refused) == (0, ())


def test_what_a_name_guessed_is_corrected_once_it_is_known(mlflow_uri: str, tmp_path: Path) -> None:
    tracking = Tracking(mlflow_uri, output_dir=tmp_path)
    tracking.start_pipeline("qwen3-8b · helpsteer3@main · cpu")
    tracking.correct_name("helpsteer3@main", "helpsteer3@2f1a")
    tracking.correct_name("helpsteer3@main", "helpsteer3@ffff")
    assert (
        MlflowClient(mlflow_uri).get_run(tracking.pipeline_run_id).info.run_name == "qwen3-8b · helpsteer3@2f1a · cpu"
    )


def test_a_stage_that_was_interrupted_is_not_left_running(tracking: Tracking, stage_run: str) -> None:
    tracking.finish_pipeline("KILLED")
    client = MlflowClient(tracking.uri)
    assert client.get_run(stage_run).info.status == "KILLED"
    assert client.get_run(tracking.pipeline_run_id).info.status == "KILLED"


def test_a_stage_fed_live_has_each_point_once_however_often_it_is_reconciled(
    tracking: Tracking, stage_run: str, tmp_path: Path
) -> None:
    events = tmp_path / "events.jsonl"
    delivery = MetricsDelivery(tracking, stage_run, interval_s=0.05)
    feed = EventFeed(events, on_metrics=delivery.add)
    for start in range(1, 31, 5):
        record_steps(events, range(start, start + 5))
        feed.poll()
        time.sleep(0.05)
    assert delivery.close() == 0
    assert history(tracking.uri, stage_run) == one_point_each(range(1, 31))
    for _ in range(2):
        assert delivery.reconcile(events) == (30, 0, 0, 0)
    assert history(tracking.uri, stage_run) == one_point_each(range(1, 31))


def test_reconciling_delivers_exactly_what_is_missing(tracking: Tracking, stage_run: str, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    record_steps(events, range(1, 31))
    tracking.send_points(stage_run, tuple(point for point in read_points(events) if point.step % 3 == 0))
    assert tracking.reconcile(stage_run, events) == (30, 20, 0, 0)
    assert tracking.reconcile(stage_run, events) == (30, 0, 0, 0)
    assert history(tracking.uri, stage_run) == one_point_each(range(1, 31))


def test_steps_logged_again_after_a_resume_make_one_point_each_and_the_last_word_wins(
    tracking: Tracking, stage_run: str, tmp_path: Path
) -> None:
    events = tmp_path / "events.jsonl"
    record_steps(events, range(1, 18), offset=100.0)
    record_steps(events, range(1, 31))
    tracking.reconcile(stage_run, events)
    assert history(tracking.uri, stage_run) == one_point_each(range(1, 31))


def test_a_point_that_the_server_holds_with_another_value_is_counted_and_not_doubled(
    tracking: Tracking, stage_run: str, tmp_path: Path
) -> None:
    events = tmp_path / "events.jsonl"
    record_steps(events, range(1, 4))
    tracking.send_points(stage_run, (MetricPoint("loss", 9.0, 1, 2),))
    assert tracking.reconcile(stage_run, events) == (3, 2, 0, 1)
    assert [step for step, _ in history(tracking.uri, stage_run)] == [1, 2, 3]


def test_nan_and_infinity_arrive_as_such_and_never_as_zero(tracking: Tracking, stage_run: str, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    Recorder(events).metrics(4, {"grad_norm": math.nan, "loss": math.inf})
    for _ in range(2):
        assert tracking.reconcile(stage_run, events).in_file == 2
    ((_, grad_norm),) = history(tracking.uri, stage_run, "grad_norm")
    ((_, loss),) = history(tracking.uri, stage_run, "loss")
    assert math.isnan(grad_norm)
    assert loss > 1e308
    assert MlflowClient(tracking.uri).get_run(stage_run).data.tags["rlhf.non_finite"] == "grad_norm@4=nan, loss@4=inf"


def test_a_name_that_mlflow_would_refuse_does_not_cost_the_other_curves(tracking: Tracking, stage_run: str) -> None:
    points = (MetricPoint("rewards/score(x)@0", 1.0, 1, 1), MetricPoint("loss", 1.0, 1, 1))
    assert tracking.send_points(stage_run, points)
    assert set(MlflowClient(tracking.uri).get_run(stage_run).data.metrics) == {"rewards/score_x__0", "loss"}


def test_the_table_of_runs_has_its_address_before_the_first_run(mlflow_uri: str) -> None:
    assert runs_page(mlflow_uri, "not yet") == mlflow_uri
    page = runs_page(mlflow_uri, "not yet", is_made=True)
    experiment = MlflowClient(mlflow_uri).get_experiment_by_name("not yet")
    assert experiment is not None
    assert page == f"{mlflow_uri}/#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning"
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert runs_page(mlflow_uri, "not yet", is_made=True) == page


def test_what_went_in_and_came_out_stands_on_the_runs_page(tracking: Tracking) -> None:
    spec = StageSpec(
        stage=StageName.TRAIN_REWARD_MODEL,
        key="c" * 64,
        config=TrainRewardModelConfig(),
        inputs=(StageInput(name="pairs", path="/data/pairs", digest=DIGEST, origin="nvidia/HelpSteer3@2f1a"),),
        seed=3,
        profile=GpuProfile(name="cpu", num_gpus=0, precision="float32"),
        batch=BatchPlan(global_batch_size=1, per_device_batch_size=1, num_processes=1, gradient_accumulation_steps=1),
        required=RequiredContract(shm_size_bytes=0, num_gpus=0, enforced=False),
        runtime="process",
        work_path="work",
    )
    stage_run = tracking.start_attempt(spec, tags={"rlhf.why": "it is new"}, note="Attempt 1")
    lineage = (LineageEntry(name="pairs", digest=DIGEST, origin="nvidia/HelpSteer3@2f1a"),)
    tracking.log_lineage(stage_run, lineage, output_digest="sha256:out")
    run = MlflowClient(tracking.uri).get_run(stage_run)
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("pairs", "ab" * 18)
    assert json.loads(dataset.dataset.source)["digest"] == DIGEST
    assert run.data.tags["lineage.input.pairs"] == f"{DIGEST} nvidia/HelpSteer3@2f1a"
    assert run.data.tags["lineage.output"] == "sha256:out"
    tags = {"rlhf.key": "c" * 64, "rlhf.why": "it is new", "rlhf.attempt": "1", "mlflow.note.content": "Attempt 1"}
    assert tags.items() <= run.data.tags.items()
    assert (run.data.params["lora.r"], run.data.params["seed"]) == ("64", "3")
    assert tracking.refused == ()


def test_figures_have_their_intervals_and_a_table_with_units(
    tracking: Tracking, stage_run: str, tmp_path: Path
) -> None:
    accuracy = Metric(name="accuracy", value=0.9, unit="fraction", ci_low=0.8, ci_high=0.95, count=120)
    tracking.log_final_metrics(stage_run, (accuracy,))
    client = MlflowClient(tracking.uri)
    run = client.get_run(stage_run)
    assert run.data.metrics == {"final/accuracy": 0.9, "final/accuracy_ci_low": 0.8, "final/accuracy_ci_high": 0.95}
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "figures.json", "type": "table"}]
    table = json.loads(Path(client.download_artifacts(stage_run, "figures.json", str(tmp_path))).read_text())
    (row,) = table["data"]
    assert dict(zip(table["columns"], row, strict=True)) == accuracy.model_dump()


def test_large_weights_stay_and_are_named_while_everything_else_is_uploaded(mlflow_uri: str, tmp_path: Path) -> None:
    tracking = Tracking(mlflow_uri, output_dir=tmp_path, largest_file_bytes=1000)
    tracking.start_pipeline("folders")
    run_id = tracking.start_stage(StageName.TRAIN_REWARD_MODEL, attempt=1)
    folder = tmp_path / "artifact"
    for name, size in (("merged/model.safetensors", 2000), ("adapter/adapter.safetensors", 2000), ("a.json", 10)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * size)
    tracking.log_artifact_folder(run_id, folder)
    client = MlflowClient(mlflow_uri)
    found = {item.path for item in client.list_artifacts(run_id, "output")}
    assert found == {"output/a.json", "output/adapter", "output/NOT_UPLOADED.txt"}
    note = Path(client.download_artifacts(run_id, "output/NOT_UPLOADED.txt", str(tmp_path))).read_text()
    assert str(folder / "merged/model.safetensors") in note
    assert "adapter" not in note


def test_a_link_in_an_artifact_leaks_nothing_to_the_server(tracking: Tracking, stage_run: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("canary")
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / "a.json").write_text("{}")
    (folder / "z.json").symlink_to(tmp_path / "secret")
    tracking.log_artifact_folder(stage_run, folder)
    tracking.log_file(stage_run, folder / "z.json")
    assert MlflowClient(tracking.uri).list_artifacts(stage_run) == []
    assert "symbolic link" in tracking.refused[0]


def test_a_changed_parameter_is_refused_once_and_does_not_wait_for_ever(tracking: Tracking, stage_run: str) -> None:
    tracking.log_params(stage_run, {"lr": 1})
    tracking.log_params(stage_run, {"lr": 2})
    tracking.log_params(stage_run, {"seed": 1})
    assert len(tracking.refused) == 1
    assert tracking.pending == 0
    assert MlflowClient(tracking.uri).get_run(stage_run).data.params == {"lr": "1", "seed": "1"}
