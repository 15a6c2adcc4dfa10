"""Somebody starts, cancels, retries and loses runs from Prefect's pages; `rlhf serve` is behind them."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest
from faults.tiny_project import TinyProject
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.settings import temporary_settings
from prefect.states import Crashed
from served_project import STAGE_PROGRAM, ServedProject

from containers.contracts.names import StageName
from flows.servers.local import ServerSettings, local_servers
from flows.serving.deployments import WATCHDOG, RetrainSchedule, set_retrain_schedule
from tasks.mlflow_sync.pages import runs_page
from tasks.pipeline.standing_report import last_record
from tasks.prefect_sync.cancellation import DELETED
from tasks.prefect_sync.ledger import LEDGER_FOLDER

pytestmark = [pytest.mark.slow, pytest.mark.stages]

REWARD = StageName.TRAIN_REWARD_MODEL
FLOW_PROCESS = "prefect.engine"
# Longer than any test waits: what works is stopped by somebody.
LONG = [
    f"{REWARD}.schedule.{key}={value}" for key, value in (("max_steps", 20000), ("eval_steps", 10), ("save_steps", 10))
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[ServedProject]:
    """One project, served; the servers are the test's own, so that they outlive the serving."""
    folder = TinyProject.make(tmp_path_factory.mktemp("served") / "project", project).folder
    state_dir = folder / "outputs" / ".servers"
    with local_servers(ServerSettings(state_dir=state_dir), say=lambda text: None) as servers:
        served = ServedProject(folder, servers)
        try:
            served.serve()
            yield served
        finally:
            served.kill_what_is_left()


def settings(run_name: str, *more: str) -> dict[str, object]:
    """What is filled in for a run with a store of its own."""
    return {
        "start_from": "tiny",
        "save_as": run_name,
        "more_settings": [f"run.store_dir=outputs/{run_name}-store", *more],
    }


def in_training(served: ServedProject, run_name: str) -> UUID:
    """A run whose reward model is being trained; what comes before is taken from the first run, where there was one."""
    served.lend(run_name, StageName.FILTER_DATASET, StageName.BUILD_BASE_MODEL)
    run = served.start("train-reward-model", **settings(run_name, *LONG))
    served.wait_for_step(run_name, REWARD, step=12)
    return run


def assert_that_it_goes_on(served: ServedProject, run_name: str, *, after: int) -> None:
    """The stage trains further, and has not begun again."""
    served.wait_for(lambda: max(served.steps(run_name, REWARD)) > after, what=f"a step after {after}")
    assert served.steps(run_name, REWARD).count(1) == 1


def test_a_run_from_the_form_ends_with_a_report_that_says_how_to_repeat_it(served: ServedProject) -> None:
    run = served.start(
        "rlhf-pipeline",
        start_from="tiny",
        save_as="formed",
        minimum_accuracy=0.5,
        until="evaluate_reward_model",
        more_settings=["train_reward_model.schedule.max_steps=10"],
    )
    assert served.ended(run) == "Completed", served.message(run)
    assert [name for name, _ in served.stages(run)][:3] == ["check_system", "filter_dataset", "build_base_model"]
    record = last_record(served.folder / "outputs/formed")
    assert record is not None
    assert record.command.startswith("rlhf run -c configs/runs/tiny.yaml --set run.name=formed --set gates.reward_m")
    assert served.run(run).name.startswith("own-1x64 · train@")
    assert "run:formed" in served.run(run).tags


def test_a_part_of_the_pipeline_ends_after_its_stage(served: ServedProject) -> None:
    run = served.start("filter-dataset", start_from="tiny", save_as="part", sample_limit=600)
    assert served.ended(run) == "Completed", served.message(run)
    assert [name for name, _ in served.stages(run)] == ["check_system", "filter_dataset", "write_report"]
    logged = served.logs(run)
    assert len([line for line in logged if "filter_dataset done in" in line]) == 1


def test_the_serving_names_mlflows_table_of_runs_before_the_first_run(served: ServedProject) -> None:
    (page,) = [line.split()[1] for line in served.said.splitlines() if line.startswith("MLflow   ")]
    assert re.fullmatch(rf"{served.servers.mlflow_uri}/#/experiments/\d+/runs\?workflowType=machine_learning", page)
    assert page == runs_page(served.servers.mlflow_uri, "rlhf-flows")


def test_the_server_refuses_a_wrong_value_with_field_and_bound(served: ServedProject) -> None:
    refused = served.send_form("rlhf-pipeline", start_from="tiny", minimum_accuracy=65)
    assert refused.status_code == 409
    assert "minimum_accuracy" in refused.text and "maximum of 1" in refused.text
    refused = served.send_form("rlhf-pipeline", start_from="gone")
    assert refused.status_code == 409
    assert "'gone' is not one of" in refused.text and "'tiny'" in refused.text


@pytest.mark.parametrize("deployment", ["certify", "rlhf-retrain"])
def test_a_schedule_without_a_run_to_start_from_fails_in_words(served: ServedProject, deployment: str) -> None:
    found = served.client.read_deployment_by_name(f"{deployment}/{deployment}")
    every = IntervalSchedule(interval=timedelta(seconds=20))
    (schedule,) = served.client.create_deployment_schedules(found.id, [(every, True)])
    only = DeploymentFilter(id=DeploymentFilterId(any_=[found.id]))
    ended = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.FAILED])))

    def failed() -> list[FlowRun]:
        return served.client.read_flow_runs(deployment_filter=only, flow_run_filter=ended)

    try:
        run = served.wait_for(failed, what="the end of a scheduled run", timeout_s=180)[0]
    finally:
        served.client.delete_deployment_schedule(found.id, schedule.id)
    assert "start_from: no run configuration was chosen" in served.message(run.id)
    assert "`tiny`" in served.message(run.id)
    assert run.name.endswith("(not started)")
    assert not [line for line in served.logs(run.id) if "Traceback" in line]


def test_a_run_that_is_deleted_while_it_trains_ends_with_its_stage_and_the_serving_goes_on(
    served: ServedProject,
) -> None:
    run = in_training(served, "deleted")
    served.client.delete_flow_run(run)
    served.wait_for(lambda: not list(served.processes(STAGE_PROGRAM)), what="the end of the stage")
    served.wait_for(lambda: not list(served.processes(FLOW_PROCESS)), what="the end of the run's process")
    assert "has stopped; its page says why." in served.said
    assert "Traceback" not in served.said
    assert list((served.folder / "outputs/deleted" / LEDGER_FOLDER).glob("*.json")) == []
    assert DELETED in (served.folder / "outputs/deleted/report.html").read_text(encoding="utf-8")


def test_a_second_run_of_one_name_fails_with_who_holds_its_folder(served: ServedProject) -> None:
    first = in_training(served, "alone")
    second = served.start("train-reward-model", **settings("alone", *LONG))
    try:
        assert served.ended(second) == "Failed"
        assert "is at work in" in served.message(second)
        assert "save_as" in served.message(second)
        assert served.state(first) == "Running"
    finally:
        served.press("Cancelling", first)
        served.ended(first)


def test_a_page_of_another_origin_cannot_start_a_run(served: ServedProject) -> None:
    found = served.client.read_deployment_by_name("filter-dataset/filter-dataset")
    before = served.client.read_flow_runs()
    user, _, password = served.login.partition(":")
    login = httpx.BasicAuth(user, password)  # even of a page that knew it
    answer = httpx.post(  # what a browser sends for a page without asking the server first
        f"{served.servers.prefect_api_url}/deployments/{found.id}/create_flow_run",
        content=json.dumps({"parameters": {"start_from": "tiny"}}),
        headers={"Content-Type": "text/plain", "Origin": "http://elsewhere.example"},
        auth=login,
        timeout=30,
    )
    assert (answer.status_code, answer.json()) == (403, {"detail": "Missing CSRF token."})
    token = httpx.get(
        f"{served.servers.prefect_api_url}/csrf-token",
        params={"client": str(uuid4())},
        headers={"Origin": "http://elsewhere.example"},
        auth=login,
        timeout=30,
    )
    assert "access-control-allow-origin" not in token.headers, "that page could read the token"
    assert len(served.client.read_flow_runs()) == len(before)


def test_what_no_form_can_know_is_told_by_a_first_message_and_nothing_starts(served: ServedProject) -> None:
    run = served.start("rlhf-pipeline", start_from="tiny", more_settings=["train_policy.betta=1", "run.until=nowhere"])
    assert served.ended(run) == "Failed"
    assert served.message(run).startswith("configs/runs/tiny.yaml has 2 mistakes:\n")
    assert "Did you mean `beta`?" in served.message(run)
    assert served.stages(run) == []
    assert not [line for line in served.logs(run) if "Traceback" in line]


def test_a_second_serving_says_that_there_is_one(served: ServedProject) -> None:
    second = subprocess.run(
        served.command("serve"), cwd=served.folder, env=served.environment, capture_output=True, text=True, timeout=60
    )
    assert second.returncode == 1
    assert second.stderr.startswith(f"`rlhf serve` runs here already: process {served.process and served.process.pid}")


def test_cancel_stops_the_stage_and_retry_goes_on_from_its_checkpoint(served: ServedProject) -> None:
    run = in_training(served, "cancelled")
    served.press("Cancelling", run)
    assert served.ended(run, timeout_s=60) == "Cancelled"
    assert list(served.processes(STAGE_PROGRAM)) == []
    # The server works through what it was told of tasks after it was told of the run.
    served.wait_for_last_stage(run, REWARD, "Cancelled")
    before, last = len(served.stages(run)), max(served.steps("cancelled", REWARD))

    served.press("AwaitingRetry", run)
    served.wait_for(lambda: (REWARD.value, "Running") in served.stages(run), what="the retry")
    again = served.stages(run)[before:]
    assert again[1:3] == [("filter_dataset", "Reused"), ("build_base_model", "Reused")]
    assert_that_it_goes_on(served, "cancelled", after=last)
    served.press("Cancelling", run)
    assert served.ended(run, timeout_s=60) == "Cancelled"


def test_a_flow_process_that_is_killed_is_crashed_and_its_stage_ends_too(served: ServedProject) -> None:
    run = in_training(served, "killed")
    next(served.processes(FLOW_PROCESS)).kill()
    assert served.ended(run, timeout_s=60) == "Crashed"
    served.wait_for(lambda: not list(served.processes(STAGE_PROGRAM)), what="the end of the stage", timeout_s=60)
    # What the first look misses, where the server is far behind, the next one finds a minute later.
    served.wait_for_last_stage(run, REWARD, "Crashed", timeout_s=120)


def test_a_flow_process_that_is_killed_while_it_is_cancelled_leaves_no_stage_running(served: ServedProject) -> None:
    """Prefect's runner kills a process that has not ended 30 s after it was told to."""
    run = in_training(served, "cancelled-and-killed")
    with served.held(REWARD, run=run):  # so that the stop takes long
        served.press("Cancelling", run)
        served.wait_for(lambda: "cancel" in "".join(served.logs(run)).lower(), what="the cancellation", timeout_s=60)
        for process in served.processes(FLOW_PROCESS):
            process.kill()
        assert served.ended(run, timeout_s=60) in {"Cancelled", "Crashed"}
    served.wait_for_last_stage(run, REWARD, served.state(run))
    served.wait_for(lambda: not list(served.processes(STAGE_PROGRAM)), what="the end of the stage", timeout_s=60)


def test_whoever_ends_the_serving_ends_its_runs_first_and_they_can_go_on(served: ServedProject) -> None:
    retrain = served.client.read_deployment_by_name("rlhf-retrain/rlhf-retrain")
    served.client.create_deployment_schedules(retrain.id, [(CronSchedule(cron="0 5 1 1 *"), True)])
    run = in_training(served, "stopped")
    assert served.end(signal.SIGTERM) == 143
    assert served.state(run) == "Crashed"
    assert "Retry, or the same command, goes on from the last good step" in served.message(run)
    assert list(served.processes(STAGE_PROGRAM)) == []
    last = max(served.steps("stopped", REWARD))

    served.serve("--retrain", "tiny", "--cron", "0 6 1 1 *")
    assert "Scheduled: rlhf-retrain of `tiny` at `0 6 1 1 *` (UTC)" in served.said
    with temporary_settings(served.settings):
        set_retrain_schedule(RetrainSchedule(start_from="tiny", cron="30 6 * * mon"))
    served.press("AwaitingRetry", run)
    assert_that_it_goes_on(served, "stopped", after=last)
    served.press("Cancelling", run)
    assert served.ended(run, timeout_s=60) == "Cancelled"
    assert len(served.client.read_automations_by_name(WATCHDOG)) == 1
    found = {
        schedule.schedule.cron: schedule.parameters
        for schedule in served.client.read_deployment_schedules(retrain.id)
        if isinstance(schedule.schedule, CronSchedule)
    }
    assert found == {"0 5 1 1 *": {}, "30 6 * * mon": {"start_from": "tiny"}}, "one by hand; the other was set twice"


def test_a_run_outlives_a_serving_that_is_killed(served: ServedProject) -> None:
    run = in_training(served, "orphaned")
    assert served.end(signal.SIGKILL) == -signal.SIGKILL
    served.serve()
    assert served.state(run) == "Running"
    served.client.set_flow_run_state(run, Crashed(message="as the automation does after a silence"), force=True)
    served.wait_for(lambda: served.state(run) == "Running", what="the run's own word that it lives", timeout_s=30)
    served.press("Cancelling", run)
    assert served.ended(run, timeout_s=60) == "Cancelled"
    served.wait_for(lambda: not list(served.processes(STAGE_PROGRAM)), what="the end of the stage", timeout_s=60)


def test_the_deployments_of_prefect_yaml_run_on_a_work_pool(served: ServedProject, project: Path) -> None:
    assert served.end(signal.SIGTERM) == 143
    (served.folder / "prefect.yaml").write_text((project / "prefect.yaml").read_text(encoding="utf-8"))
    environment = served.environment | {
        "PREFECT_API_URL": served.servers.prefect_api_url,
        "MLFLOW_TRACKING_URI": served.servers.mlflow_uri,
        "RLHF_PROJECT": str(served.folder),
    }

    def prefect(*words: str) -> list[str]:
        return [sys.executable, "-m", "prefect", *words]

    for words in (("work-pool", "create", "rlhf", "--type", "process"), ("--no-prompt", "deploy", "--all")):
        done = subprocess.run(
            prefect(*words),
            cwd=served.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert served.send_form("certify", start_from="tiny", minimum_accuracy=65).status_code == 409

    run = served.start("filter-dataset", start_from="tiny", save_as="pooled", sample_limit=500)
    served.process = None
    with (served.folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            prefect("worker", "start", "--pool", "rlhf", "--name", "tests"),
            cwd=served.folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        assert served.ended(run) == "Completed", served.message(run)
        assert last_record(served.folder / "outputs/pooled") is not None
    finally:
        worker.terminate()
        worker.wait(timeout=60)
