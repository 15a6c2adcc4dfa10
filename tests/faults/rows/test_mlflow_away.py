"""MLflow away or broken while stages work: training is not touched, and in the end it knows it all, once."""

import time
from pathlib import Path

import pytest
from fault_proxy import Fault as ProxyFault
from fault_proxy import fault_proxy
from fault_rows import Fault
from locked_database import locked_database
from mortal_server import Mlflow, own_experiment
from reference import REWARD, Reference, assert_undisturbed, assert_went_on, own_store
from tiny_project import TinyProject, stage_processes, wait_for_end

from tasks.mlflow_sync.sending import mlflow_name
from tasks.store.events import read_points

pytestmark = [pytest.mark.slow, pytest.mark.stages]


def exit_delay_s(work: Path) -> float:
    """Seconds between the end of the stage's program and now, when the command has ended."""
    return time.time() - (work / "outcome.json").stat().st_mtime


def assert_all_told(mlflow: Mlflow, experiment: str, events: Path) -> int:
    """Every run is FINISHED, and the training's has each point of the events exactly once. Returns how many."""
    runs = mlflow.runs(experiment)
    assert [status for _, _, status in runs] == ["FINISHED"] * len(runs)
    trained = next(run_id for run_name, run_id, _ in runs if run_name == REWARD)
    return assert_told_once(mlflow, trained, events)


def assert_told_once(mlflow: Mlflow, run_id: str, events: Path) -> int:
    """The run has each point of the events exactly once. Returns how many."""
    wanted = {(mlflow_name(point.key), point.step): 1 for point in read_points(events)}
    assert mlflow.num_points(run_id) == wanted
    return len(wanted)


BROKEN: dict[ProxyFault, str] = {
    "refuse": "refuses connections before, during and after a run",
    "error 500": "answers 500 to everything from step 8 on",
    "hang": "takes requests and never answers from step 8 on",
    "slow": "takes 4 s from step 8 on",
}


@pytest.mark.parametrize("how", BROKEN)
def test_mlflow_is_broken_to_the_end(
    tiny: TinyProject, undisturbed: Reference, mlflow: Mlflow, fault: Fault, how: ProxyFault
) -> None:
    fault.describe("services", f"MLflow {BROKEN[how]}", parts="orchestrator, MLflow")
    name, store, setting = own_store(tiny, f"mlflow-{how.replace(' ', '-')}", REWARD)
    with fault_proxy(mlflow.uri, fault="refuse" if how == "refuse" else "none") as proxy:
        command = (f"run.name={name}", setting, *own_experiment(proxy.uri, name))
        driven = tiny.drive(REWARD, *command)
        work = tiny.wait_for_step(REWARD, 8, of=driven, store=store)
        proxy.fault = how
        assert driven.wait() == 0, driven.text
        delay_s = exit_delay_s(work)
        assert_undisturbed(tiny.artifact(REWARD, name), REWARD, undisturbed)
        assert delay_s < 30
        assert proxy.num_faults > 0 or how == "refuse", "who refuses connections counts none"
        assert "points wait on disk" in driven.text
        proxy.fault = "none"
        fault.recovery_starts()
        again = tiny.drive(REWARD, *command)
        assert again.wait() == 0, again.text
    num_points = assert_all_told(mlflow, name, work / "events.jsonl")
    fault.recovered(
        seen=f"trains on, ends green {delay_s:.0f} s after the stage, and says what waits; the next run in the folder "
        f"delivers the rest: {num_points} points, each once"
    )


def test_mlflow_dies_in_the_middle_and_comes_back(
    tiny: TinyProject, undisturbed: Reference, mlflow: Mlflow, fault: Fault
) -> None:
    fault.describe("services", "`kill -9` of MLflow at step 8, started again", parts="orchestrator, MLflow")
    name, store, setting = own_store(tiny, "mlflow-dies", REWARD)
    command = (f"run.name={name}", setting, *own_experiment(mlflow.uri, name))
    driven = tiny.drive(REWARD, *command)
    work = tiny.wait_for_step(REWARD, 8, of=driven, store=store)
    mlflow.kill()
    fault.recovery_starts()
    mlflow.start()
    assert driven.wait() == 0, driven.text
    assert_undisturbed(tiny.artifact(REWARD, name), REWARD, undisturbed)
    if "was not told everything" in driven.text:  # it came back too late for this run
        again = tiny.drive(REWARD, *command)
        assert again.wait() == 0, again.text
    num_points = assert_all_told(mlflow, name, work / "events.jsonl")
    fault.recovered(seen=f"trains on; all {num_points} points arrive, each once; no run is left RUNNING")


def test_somebody_holds_mlflows_database_locked(
    tiny: TinyProject, undisturbed: Reference, mlflow: Mlflow, fault: Fault
) -> None:
    locked_s = 30
    fault.describe(
        "services",
        f"somebody holds MLflow's SQLite database locked for {locked_s} s from step 8 on",
        parts="orchestrator, MLflow",
    )
    name, store, setting = own_store(tiny, "mlflow-locked", REWARD)
    command = (f"run.name={name}", setting, *own_experiment(mlflow.uri, name))
    driven = tiny.drive(REWARD, *command)
    work = tiny.wait_for_step(REWARD, 8, of=driven, store=store)
    with locked_database(mlflow.database, at_least_s=locked_s):
        fault.recovery_starts()
        tiny.wait_for_step(REWARD, 40, of=driven, store=store)
    assert driven.wait() == 0, driven.text
    delay_s = exit_delay_s(work)
    assert_undisturbed(tiny.artifact(REWARD, name), REWARD, undisturbed)
    waited = "was not told everything" in driven.text
    if waited:
        again = tiny.drive(REWARD, *command)
        assert again.wait() == 0, again.text
    num_points = assert_all_told(mlflow, name, work / "events.jsonl")
    end = f"ends green {delay_s:.0f} s after the stage{', and says what waits' if waited else ''}"
    fault.recovered(seen=f"trains on, {end}; all {num_points} points arrive, each once; no run is left RUNNING")


def test_the_orchestrator_is_killed_and_its_mlflow_runs_are_closed(
    tiny: TinyProject, undisturbed: Reference, mlflow: Mlflow, fault: Fault
) -> None:
    fault.describe("services", "`kill -9` of the orchestrator: its MLflow runs are open", parts="orchestrator, MLflow")
    name, store, setting = own_store(tiny, "mlflow-open", REWARD)
    command = (f"run.name={name}", setting, *own_experiment(mlflow.uri, name))
    driven = tiny.drive(REWARD, *command)
    work = tiny.wait_for_step(REWARD, 12, of=driven, store=store)
    orphans = list(stage_processes(driven.process.pid))
    driven.kill()
    before = [status for _, _, status in mlflow.runs(name)]
    assert before.count("RUNNING") == 2
    wait_for_end(orphans)
    fault.recovery_starts()
    again = tiny.drive(REWARD, *command)
    assert again.wait() == 0, again.text
    repeated = assert_went_on(work, tiny.artifact(REWARD, name), REWARD, undisturbed)
    runs = mlflow.runs(name)
    assert sorted(status for _, _, status in runs if status != "FINISHED") == ["KILLED", "KILLED"]
    killed, finished = [(run_id, status) for run_name, run_id, status in runs if run_name == REWARD]
    assert (killed[1], finished[1]) == ("KILLED", "FINISHED")
    num_points = assert_told_once(mlflow, finished[0], work / "events.jsonl")
    assert set(mlflow.num_points(killed[0]).values()) <= {1}
    fault.recovered(
        seen=f"the next run in the folder closes both as KILLED; its own run has all {num_points} points, those of the "
        "killed attempt too, each once",
        repeated=repeated,
    )
