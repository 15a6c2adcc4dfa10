"""Prefect away, gone or wrong about a run: stages are not touched, and in the end its pages show what is true."""

import time

import pytest
from fault_rows import Fault
from locked_database import locked_database
from mortal_server import Mlflow, Prefect, own_experiment
from reference import POLICY, REWARD, Reference, assert_undisturbed, assert_went_on, own_store
from tiny_project import Driven, TinyProject, stage_processes, wait_for_end

from containers.contracts.names import StageName

pytestmark = [pytest.mark.slow, pytest.mark.stages]


# What was done before has a name of its own for the same final state.
FINISHED = (["Completed"], ["Reused"])


def said(driven: Driven, text: str) -> str:
    """The line that holds the text."""
    lines = [line for line in driven.text.splitlines() if text in line]
    assert lines, driven.text
    return lines[-1]


@pytest.fixture(scope="module")
def whole(tiny: TinyProject, undisturbed: Reference, prefect_server: Prefect, mlflow_server: Mlflow) -> None:
    """The stages of the undisturbed store that `drive_stages.py` does not make."""
    prefect_server.start()
    mlflow_server.start()
    servers = (f"tracking.prefect_api_url={prefect_server.api_url}", *own_experiment(mlflow_server.uri, "whole"))
    driven = tiny.rlhf("run.name=whole", "run.store_dir=outputs/undisturbed-store", *servers)
    assert driven.wait() == 0, driven.text


def before_policy(tiny: TinyProject, prefect: Prefect, mlflow: Mlflow, name: str) -> tuple[str, tuple[str, ...], str]:
    """Name, settings and store of an `rlhf run` that finds everything before the policy's training finished."""
    run_name, store, setting = own_store(tiny, name, POLICY)
    tiny.copy_finished([StageName.EVALUATE_REWARD_MODEL], source="undisturbed-store", target=store)
    servers = (f"tracking.prefect_api_url={prefect.api_url}", *own_experiment(mlflow.uri, run_name))
    return run_name, (f"run.name={run_name}", setting, *servers), store


def assert_true_in_prefect(prefect: Prefect, name: str) -> None:
    """The one run of that name is Completed, and each of its tasks is finished, once."""
    (shown,) = prefect.shown(name)
    assert shown.state == "Completed"
    assert len(shown.tasks) == 8
    assert all(states in FINISHED for states in shown.tasks.values()), shown.tasks


def num_attempts(tiny: TinyProject, store: str) -> dict[str, int]:
    """Stage → how often its program was started."""
    counts: dict[str, int] = {}
    for spec in (tiny.folder / "outputs" / store / "attempts").glob("*/*/attempt-*/spec.json"):
        stage = spec.parents[2].name
        counts[stage] = counts.get(stage, 0) + 1
    return counts


ONCE_EACH = {POLICY.value: 1, StageName.EVALUATE_POLICY.value: 1, StageName.WRITE_REPORT.value: 1}


@pytest.mark.usefixtures("whole")
def test_prefect_is_killed_and_comes_back_while_a_stage_works(
    tiny: TinyProject, undisturbed: Reference, prefect: Prefect, mlflow: Mlflow, fault: Fault
) -> None:
    fault.describe("services", "`kill -9` of the Prefect server in train_policy, started again", parts="rlhf run")
    name, command, store = before_policy(tiny, prefect, mlflow, "prefect-restarted")
    driven = tiny.rlhf(*command)
    tiny.wait_for_step(POLICY, 2, of=driven, store=store)
    prefect.kill()
    away_since = time.monotonic()
    time.sleep(5)
    prefect.start()
    away_s = time.monotonic() - away_since
    fault.recovery_starts()
    assert driven.wait() == 0, driven.text
    assert_undisturbed(tiny.artifact(POLICY, name), POLICY, undisturbed)
    assert num_attempts(tiny, store) == ONCE_EACH
    assert_true_in_prefect(prefect, name)
    fault.recovered(
        seen=f"away for {away_s:.0f} s: no stage is disturbed or run twice; flow run and all 8 tasks are Completed "
        "in the UI"
    )


@pytest.mark.usefixtures("whole")
def test_somebody_holds_prefects_database_locked(
    tiny: TinyProject, undisturbed: Reference, prefect: Prefect, mlflow: Mlflow, fault: Fault
) -> None:
    locked_s = 30
    fault.describe(
        "services",
        f"somebody holds Prefect's SQLite database locked for {locked_s} s from step 2 of train_policy on",
        parts="rlhf run, Prefect server",
    )
    name, command, store = before_policy(tiny, prefect, mlflow, "prefect-locked")
    driven = tiny.rlhf(*command)
    tiny.wait_for_step(POLICY, 2, of=driven, store=store)
    with locked_database(prefect.database, at_least_s=locked_s):
        fault.recovery_starts()
        tiny.wait_for_step(POLICY, 12, of=driven, store=store)
    assert driven.wait() == 0, driven.text
    assert_undisturbed(tiny.artifact(POLICY, name), POLICY, undisturbed)
    assert num_attempts(tiny, store) == ONCE_EACH
    assert_true_in_prefect(prefect, name)
    fault.recovered(
        seen="training goes on to its end meanwhile; no stage is disturbed or run twice; flow run and all 8 tasks are "
        "Completed in the UI"
    )


@pytest.mark.usefixtures("whole")
def test_prefect_is_gone_for_good(
    tiny: TinyProject, undisturbed: Reference, prefect: Prefect, mlflow: Mlflow, fault: Fault
) -> None:
    fault.describe("services", "`kill -9` of the Prefect server in train_policy, for good", parts="rlhf run")
    name, command, store = before_policy(tiny, prefect, mlflow, "prefect-gone")
    driven = tiny.rlhf(*command)
    tiny.wait_for_step(POLICY, 2, of=driven, store=store)
    prefect.kill()
    assert driven.wait() == 0, driven.text
    delay_s = time.time() - (tiny.folder / "outputs" / name / "report.html").stat().st_mtime
    assert delay_s < 30
    said(driven, "was not told how this run ended")
    assert_undisturbed(tiny.artifact(POLICY, name), POLICY, undisturbed)
    assert num_attempts(tiny, store) == ONCE_EACH
    prefect.start()
    assert prefect.shown(name)[0].state == "Running"
    fault.recovery_starts()
    again = tiny.rlhf(*command, f"run.name={name}-again")  # another run on the same server
    assert again.wait() == 0, again.text
    assert_true_in_prefect(prefect, name)
    fault.recovered(
        seen=f"ends with exit code 0 and its report, {delay_s:.0f} s later than with a server, and says that Prefect "
        "was not told; the next run on that server makes flow run and tasks Completed"
    )


@pytest.mark.usefixtures("whole")
def test_a_killed_flow_run_is_crashed_at_the_next_start(
    tiny: TinyProject, undisturbed: Reference, prefect: Prefect, mlflow: Mlflow, fault: Fault
) -> None:
    fault.describe("services", "`kill -9` of `rlhf run`: its flow run stays Running", parts="rlhf run, Prefect server")
    name, command, store = before_policy(tiny, prefect, mlflow, "prefect-orphan")
    driven = tiny.rlhf(*command)
    work = tiny.wait_for_step(POLICY, 7, of=driven, store=store)
    orphans = list(stage_processes(driven.process.pid))
    driven.kill()
    assert prefect.shown(name)[0].state == "Running"
    wait_for_end(orphans)
    fault.recovery_starts()
    again = tiny.rlhf(*command)
    assert again.wait() == 0, again.text
    killed, later = prefect.shown(name)
    assert (killed.state, later.state) == ("Crashed", "Completed")
    assert "died without reporting" in (killed.run.state.message if killed.run.state else "")
    assert killed.tasks[POLICY] == ["Crashed"]
    assert killed.tasks[REWARD] in FINISHED
    repeated = assert_went_on(work, tiny.artifact(POLICY, name), POLICY, undisturbed)
    fault.recovered(
        seen="the next start shows it as Crashed, with its reason, and the task it was at; finished tasks stay "
        "Completed; training goes on bit for bit",
        repeated=repeated,
    )
