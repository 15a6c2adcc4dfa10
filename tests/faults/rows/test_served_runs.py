"""Runs that `rlhf serve` works for: the serving and its run are killed, and a schedule is faster than its runs."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from fault_rows import Fault
from integration.served_project import STAGE_PROGRAM, ServedProject
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule
from reference import REWARD, Reference, assert_went_on
from tiny_project import TinyProject, recorded_step, wait_for_end

from containers.contracts.names import StageName
from flows.servers.local import ServerSettings, local_servers

pytestmark = [pytest.mark.slow, pytest.mark.stages]

FLOW_PROCESS = "prefect.engine"
NAME, STORE = "served", "served-store"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[ServedProject]:
    """A project of its own, served, whose servers outlive the serving."""
    folder = TinyProject.make(tmp_path_factory.mktemp("served") / "project", project).folder
    with local_servers(ServerSettings(state_dir=folder / "outputs/.servers"), say=lambda text: None) as servers:
        served = ServedProject(folder, servers)
        try:
            served.serve()
            yield served
        finally:
            served.kill_what_is_left()


def test_kill_9_of_the_serving_and_its_run(served: ServedProject, undisturbed: Reference, fault: Fault) -> None:
    fault.describe(
        "crashes",
        f"`kill -9` of `rlhf serve` and of its flow run in {REWARD} at step 12",
        parts="rlhf serve, flow process, stage, Prefect server",
    )
    run = served.start(
        "train-reward-model", start_from="tiny", save_as=NAME, more_settings=[f"run.store_dir=outputs/{STORE}"]
    )
    served.wait_for_step(NAME, REWARD, step=12)
    (work,) = (served.folder / "outputs" / STORE / "work" / REWARD).glob("[0-9a-f]*[0-9a-f]")
    orphans = list(served.processes(STAGE_PROGRAM))
    assert served.process is not None
    served.process.kill()
    served.process.wait(timeout=30)
    next(served.processes(FLOW_PROCESS)).kill()
    wait_for_end(orphans)
    killed_at = recorded_step(work)
    assert killed_at < 40
    assert served.state(run) == "Running", "nobody is left who could tell the server"

    fault.recovery_starts()
    served.serve()
    assert served.state(run) == "Crashed"
    assert "died without reporting" in served.message(run)
    before = served.stages(run)
    assert before[-1] == (REWARD.value, "Crashed")
    served.press("AwaitingRetry", run)
    assert served.ended(run) == "Completed", served.message(run)
    again = served.stages(run)[len(before) :]
    reused = [StageName.FILTER_DATASET, StageName.BUILD_BASE_MODEL]
    assert again[1:4] == [*((stage.value, "Reused") for stage in reused), (REWARD.value, "Completed")]
    artifact = served.folder / "outputs" / NAME / "artifacts" / REWARD
    repeated = assert_went_on(work, artifact, REWARD, undisturbed)
    fault.recovered(
        seen="the stage ends with its run; `rlhf serve`, started again, shows the run as Crashed, with its reason; "
        f"Retry on its page reuses {len(reused)} stages and goes on, bit for bit, to Completed",
        repeated=repeated,
    )


def test_a_schedule_is_faster_than_its_runs(served: ServedProject, fault: Fault) -> None:
    period_s = 10
    fault.describe(
        "people and clocks",
        f"rlhf-retrain scheduled every {period_s} s, which takes longer",
        parts="rlhf serve, Prefect's scheduler",
    )
    deployment = served.client.read_deployment_by_name("rlhf-retrain/rlhf-retrain")
    every = IntervalSchedule(interval=timedelta(seconds=period_s))
    (schedule,) = served.client.create_deployment_schedules(
        deployment.id, [(every, True)], parameters={"start_from": "tiny"}
    )
    fault.recovery_starts()

    def begun() -> list[FlowRun]:
        only = DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id]))
        found = served.client.read_flow_runs(deployment_filter=only)
        return sorted((run for run in found if run.start_time), key=lambda run: str(run.start_time))

    def waiting() -> UUID | None:
        said = ((run.id, " ".join(served.logs(run.id))) for run in begun())
        return next((run for run, text in said if "Retraining: Run tiny (retraining) (process " in text), None)

    second = served.wait_for(waiting, what="a run that waits for the one before it")
    served.client.delete_deployment_schedule(deployment.id, schedule.id)
    first = begun()[0].id
    assert served.state(first) == served.state(second) == "Running"
    ended = {run.id: served.ended(run.id) for run in begun()}
    assert set(ended.values()) == {"Completed"}, ended
    assert "Nothing changed since the last decision" not in served.message(first)
    assert all("Nothing changed since the last decision" in served.message(run) for run in ended if run != first)
    attempts = list((served.folder / "outputs/store/attempts" / REWARD).glob("*/attempt-*"))
    assert len(attempts) == 1
    fault.recovered(
        seen=f"{len(ended)} were started; one trains, the others say which run they wait for, and then end within "
        "seconds, as nothing is new: trained once"
    )
