"""Processes that die at the worst moment; every test starts the real stage programs."""

from pathlib import Path

import pytest
from fault_rows import Fault
from reference import POLICY, REWARD, Reference, assert_went_on, kill_stage_processes, own_store
from tiny_project import TinyProject, stage_processes, wait_for

from containers.contracts.names import StageName

pytestmark = [pytest.mark.slow, pytest.mark.stages]


@pytest.mark.parametrize(("stage", "step"), [(REWARD, 12), (POLICY, 7)])
def test_kill_9_of_the_training_process(
    tiny: TinyProject, undisturbed: Reference, fault: Fault, stage: StageName, step: int
) -> None:
    fault.describe("crashes", f"`kill -9` of the program of {stage} at step {step}", parts="stage process")
    name, store, setting = own_store(tiny, "killed", stage)
    driven = tiny.drive(stage, f"run.name={name}", setting)
    work = tiny.wait_for_step(stage, step, of=driven, store=store)
    kill_stage_processes(driven)
    fault.recovery_starts()
    assert driven.wait() == 0, driven.text
    repeated = assert_went_on(work, tiny.artifact(stage, name), stage, undisturbed, killed_at=step)
    fault.recovered(seen="tried again by itself; weights and curves equal the undisturbed run's", repeated=repeated)


@pytest.mark.parametrize(("stage", "step"), [(REWARD, 12), (POLICY, 7)])
def test_kill_9_of_the_orchestrator(
    tiny: TinyProject, undisturbed: Reference, fault: Fault, stage: StageName, step: int
) -> None:
    fault.describe("crashes", f"`kill -9` of the orchestrator in {stage} at step {step}", parts="orchestrator, stage")
    name, store, setting = own_store(tiny, "orphaned", stage)
    driven = tiny.drive(stage, f"run.name={name}", setting)
    work = tiny.wait_for_step(stage, step, of=driven, store=store)
    orphans = [process.pid for process in stage_processes(driven.process.pid)]
    driven.kill()
    wait_for(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in orphans), what="the stage's own end")
    fault.recovery_starts()
    again = tiny.drive(stage, f"run.name={name}", setting)
    assert again.wait() == 0, again.text
    repeated = assert_went_on(work, tiny.artifact(stage, name), stage, undisturbed, killed_at=step)
    done_before = [event["ended"] for event in again.events if event.get("status") == "reused"]
    assert StageName.FILTER_DATASET in done_before
    fault.recovered(
        seen=f"its stage ends with it; the same command reuses {len(done_before)} stages and goes on bit for bit",
        repeated=repeated,
    )
