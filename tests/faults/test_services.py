"""MLflow and Prefect away or broken while stages work: training is not touched, and in the end both know it all."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_proxy import Fault as ProxyFault
from fault_proxy import fault_proxy
from fault_rows import Fault
from mortal_server import Mlflow, Prefect
from reference import POLICY, REWARD, Reference, assert_went_on, own_store
from tiny_project import Driven, TinyProject, curves, stage_processes, wait_for, weights_digest

from containers.contracts.names import StageName
from tasks.event_feed import read_points
from tasks.mlflow_sending import mlflow_name

pytestmark = [pytest.mark.slow, pytest.mark.stages]


@pytest.fixture(scope="module")
def mlflow_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mlflow]:
    server = Mlflow(tmp_path_factory.mktemp("mlflow"))
    yield server
    server.stop()


@pytest.fixture
def mlflow(mlflow_of_module: Mlflow) -> Mlflow:
    mlflow_of_module.start()
    return mlflow_of_module


@pytest.fixture(scope="module")
def prefect_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    server = Prefect(tmp_path_factory.mktemp("prefect"))
    yield server
    server.stop()


@pytest.fixture
def prefect(prefect_of_module: Prefect) -> Prefect:
    prefect_of_module.start()
    return prefect_of_module


def exit_delay_s(driven: Driven, work: Path) -> float:
    """Seconds between the end of the stage's program and the end of the command."""
    ended_at = time.time()
    return ended_at - (work / "outcome.json").stat().st_mtime


def assert_undisturbed(artifact: Path, stage: StageName, reference: Reference) -> None:
    """Bit for bit what nobody disturbed."""
    assert weights_digest(artifact) == reference.weights[stage]
    assert curves(artifact) == reference.curves[stage]


def assert_told_once(mlflow: Mlflow, run_id: str, events: Path) -> int:
    """The run has each point of the events exactly once. Returns how many."""
    wanted = {(mlflow_name(point.key), point.step): 1 for point in read_points(events)}
    assert mlflow.num_points(run_id) == wanted
    return len(wanted)


def settings(mlflow_uri: str, name: str) -> tuple[str, str]:
    """An experiment of the test's own."""
    return f"tracking.mlflow_uri={mlflow_uri}", f"tracking.experiment={name}"


def said(driven: Driven, text: str) -> str:
    """The line that holds the text."""
    lines = [line for line in driven.text.splitlines() if text in line]
    assert lines, driven.text
    return lines[-1]


def test_mlflow_down_from_the_start_to_the_end(
    tiny: TinyProject, undisturbed: Reference, mlflow: Mlflow, fault: Fault
) -> None:
    fault.describe(
        "services", "MLflow refuses connections before, during and after a run", parts="orchestrator, MLflow"
    )
    name, store, setting = own_store(tiny, "mlflow-down", REWARD)
    with fault_proxy(mlflow.uri, fault="refuse") as proxy:
        away = (f"run.name={name}", setting, *settings(proxy.uri, name))
        driven = tiny.drive(REWARD, *away)
        assert driven.wait() == 0, driven.text
        delay_s = exit_delay_s(driven, tiny.work_of(REWARD, store=store))
        assert_undisturbed(tiny.artifact(REWARD, name), REWARD, undisturbed)
        assert delay_s < 30
        assert "points wait on disk" in said(driven, "was not told everything")
        proxy.fault = "none"
        fault.recovery_starts()
        again = tiny.drive(REWARD, *away)
        assert again.wait() == 0, again.text
    runs = mlflow.runs(name)
    assert [status for _, _, status in runs] == ["FINISHED"] * len(runs)
    (trained,) = [run_id for run_name, run_id, _ in runs if run_name == REWARD][:1]
    num_points = assert_told_once(mlflow, trained, tiny.work_of(REWARD, store=store) / "events.jsonl")
    fault.recovered(
        seen=f"trains on, ends green {delay_s:.0f} s after the stage, says what waits; the next run in the folder "
        f"delivers all {num_points} points, each once"
    )


def test_mlflow_dies_in_the_middle_and_comes_back(
    tiny: TinyProject, undisturbed: Reference, mlflow: Mlflow, fault: Fault
) -> None:
    fault.describe("services", "`kill -9` of MLflow at step 8, started again", parts="orchestrator, MLflow")
    name, store, setting = own_store(tiny, "mlflow-dies", REWARD)
    command = (f"run.name={name}", setting, *settings(mlflow.uri, name))
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
    runs = mlflow.runs(name)
    assert [status for _, _, status in runs] == ["FINISHED"] * len(runs)
    (trained,) = [run_id for run_name, run_id, _ in runs if run_name == REWARD][:1]
    num_points = assert_told_once(mlflow, trained, work / "events.jsonl")
    fault.recovered(seen=f"trains on; all {num_points} points arrive, each once; no run is left RUNNING")


@pytest.mark.parametrize("how", ["error 500", "hang", "slow"])
def test_mlflow_is_broken_to_the_end(
    tiny: TinyProject, undisturbed: Reference, mlflow: Mlflow, fault: Fault, how: ProxyFault
) -> None:
    words = {"error 500": "answers 500 to everything", "hang": "takes requests and never answers", "slow": "takes 4 s"}
    fault.describe("services", f"MLflow {words[how]} from step 8 on", parts="orchestrator, MLflow")
    name, store, setting = own_store(tiny, f"mlflow-{how.replace(' ', '-')}", REWARD)
    with fault_proxy(mlflow.uri) as proxy:
        command = (f"run.name={name}", setting, *settings(proxy.uri, name))
        driven = tiny.drive(REWARD, *command)
        work = tiny.wait_for_step(REWARD, 8, of=driven, store=store)
        proxy.fault = how
        assert driven.wait() == 0, driven.text
        delay_s = exit_delay_s(driven, work)
        assert_undisturbed(tiny.artifact(REWARD, name), REWARD, undisturbed)
        assert delay_s < 30
        assert proxy.num_faults > 0
        proxy.fault = "none"
        fault.recovery_starts()
        again = tiny.drive(REWARD, *command)
        assert again.wait() == 0, again.text
    runs = mlflow.runs(name)
    assert [status for _, _, status in runs] == ["FINISHED"] * len(runs)
    (trained,) = [run_id for run_name, run_id, _ in runs if run_name == REWARD][:1]
    num_points = assert_told_once(mlflow, trained, work / "events.jsonl")
    fault.recovered(
        seen=f"trains on, ends green {delay_s:.0f} s after the stage; the next run in the folder delivers the rest: "
        f"{num_points} points, each once"
    )


def test_the_orchestrator_is_killed_and_its_mlflow_runs_are_closed(
    tiny: TinyProject, undisturbed: Reference, mlflow: Mlflow, fault: Fault
) -> None:
    fault.describe("services", "`kill -9` of the orchestrator: its MLflow runs are open", parts="orchestrator, MLflow")
    name, store, setting = own_store(tiny, "mlflow-open", REWARD)
    command = (f"run.name={name}", setting, *settings(mlflow.uri, name))
    driven = tiny.drive(REWARD, *command)
    work = tiny.wait_for_step(REWARD, 12, of=driven, store=store)
    orphans = [process.pid for process in stage_processes(driven.process.pid)]
    driven.kill()
    before = [status for _, _, status in mlflow.runs(name)]
    assert before.count("RUNNING") == 2
    wait_for(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in orphans), what="the stage's own end")
    fault.recovery_starts()
    again = tiny.drive(REWARD, *command)
    assert again.wait() == 0, again.text
    repeated = assert_went_on(work, tiny.artifact(REWARD, name), REWARD, undisturbed, killed_at=12)
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


@pytest.fixture(scope="module")
def whole(tiny: TinyProject, undisturbed: Reference, prefect_of_module: Prefect, mlflow_of_module: Mlflow) -> None:
    """The stages of the undisturbed store that `drive_stages.py` does not make."""
    prefect_of_module.start()
    mlflow_of_module.start()
    servers = (f"tracking.prefect_api_url={prefect_of_module.api_url}", *settings(mlflow_of_module.uri, "whole"))
    driven = tiny.rlhf("run.name=whole", "run.store_dir=outputs/undisturbed-store", *servers)
    assert driven.wait() == 0, driven.text


def before_policy(tiny: TinyProject, prefect: Prefect, mlflow: Mlflow, name: str) -> tuple[str, tuple[str, ...], str]:
    """Name, settings and store of an `rlhf run` that finds everything before the policy's training finished."""
    run_name, store, setting = own_store(tiny, name, POLICY)
    tiny.copy_finished([StageName.EVALUATE_REWARD_MODEL], source="undisturbed-store", target=store)
    servers = (f"tracking.prefect_api_url={prefect.api_url}", *settings(mlflow.uri, run_name))
    return run_name, (f"run.name={run_name}", setting, *servers), store


def assert_true_in_prefect(prefect: Prefect, name: str) -> None:
    """The one run of that name is Completed, and each of its tasks is, once."""
    (shown,) = prefect.shown(name)
    assert shown.state == "Completed"
    assert len(shown.tasks) == 8
    assert all(states == ["Completed"] for states in shown.tasks.values()), shown.tasks


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
    orphans = [process.pid for process in stage_processes(driven.process.pid)]
    driven.kill()
    assert prefect.shown(name)[0].state == "Running"
    wait_for(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in orphans), what="the stage's own end")
    fault.recovery_starts()
    again = tiny.rlhf(*command)
    assert again.wait() == 0, again.text
    killed, later = prefect.shown(name)
    assert (killed.state, later.state) == ("Crashed", "Completed")
    assert "died without a word" in (killed.run.state.message if killed.run.state else "")
    assert killed.tasks[POLICY] == ["Crashed"]
    assert killed.tasks[REWARD] == ["Completed"]
    repeated = assert_went_on(work, tiny.artifact(POLICY, name), POLICY, undisturbed, killed_at=7)
    fault.recovered(
        seen="the next start shows it as Crashed, with its reason, and the task it was at; finished tasks stay "
        "Completed; training goes on bit for bit",
        repeated=repeated,
    )
