"""Processes that die at the worst moment; every test starts the real stage programs."""

import contextlib
import time

import psutil
import pytest
from fault_rows import Fault
from reference import POLICY, REWARD, SFT, Reference, assert_went_on, kill_stage_processes, own_store
from tiny_project import WITH_SFT, TinyProject, stage_processes, wait_for, wait_for_end, wait_for_held

from containers.contracts.names import StageName
from containers.contracts.outcome import FailureKind, StageFailure
from containers.launch.collect import read_outcome

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
    repeated = assert_went_on(work, tiny.artifact(stage, name), stage, undisturbed)
    fault.recovered(seen="tried again by itself; weights and curves equal the undisturbed run's", repeated=repeated)


@pytest.mark.parametrize(("stage", "step"), [(SFT, 12), (REWARD, 12), (POLICY, 7)])
def test_kill_9_of_the_orchestrator(
    tiny: TinyProject,
    undisturbed: Reference,
    undisturbed_sft: Reference,
    fault: Fault,
    stage: StageName,
    step: int,
) -> None:
    fault.describe("crashes", f"`kill -9` of the orchestrator in {stage} at step {step}", parts="orchestrator, stage")
    name, store, setting = own_store(tiny, "orphaned", stage)
    command = (f"run.name={name}", setting, *((WITH_SFT,) if stage is SFT else ()))
    driven = tiny.drive(stage, *command)
    work = tiny.wait_for_step(stage, step, of=driven, store=store)
    orphans = list(stage_processes(driven.process.pid))
    driven.kill()
    wait_for_end(orphans)
    fault.recovery_starts()
    again = tiny.drive(stage, *command)
    assert again.wait() == 0, again.text
    reference = undisturbed_sft if stage is SFT else undisturbed
    repeated = assert_went_on(work, tiny.artifact(stage, name), stage, reference)
    num_reused = list(again.statuses.values()).count("reused")
    assert again.statuses[StageName.FILTER_DATASET] == "reused"
    fault.recovered(
        seen=f"its stage ends with it; the same command reuses {num_reused} stages and goes on bit for bit",
        repeated=repeated,
    )


SHORT_STAGES = (
    StageName.FILTER_DATASET,
    StageName.BUILD_BASE_MODEL,
    StageName.EVALUATE_REWARD_MODEL,
    StageName.EVALUATE_POLICY,
    StageName.WRITE_REPORT,
)


def test_kill_9_of_the_orchestrator_in_each_stage_that_saves_no_checkpoint(
    undisturbed_judgement: TinyProject, fault: Fault
) -> None:
    fault.describe(
        "crashes",
        f"`kill -9` of the orchestrator in each of {', '.join(SHORT_STAGES)}, when its files are written and their "
        "manifest is not",
        parts="orchestrator, stage",
    )
    tiny, name, store = undisturbed_judgement, "orphaned-short", "orphaned-short-store"
    tiny.copy_finished([REWARD, POLICY], source="undisturbed-store", target=store)
    folder = tiny.folder / "outputs" / store
    command = (f"run.name={name}", f"run.store_dir=outputs/{store}")
    driven = tiny.drive(StageName.WRITE_REPORT, *command, hold=SHORT_STAGES[0])
    recoveries_s = []
    for stage, following in zip(SHORT_STAGES, (*SHORT_STAGES[1:], None), strict=True):
        held = wait_for_held(driven)
        driven.kill()
        held.resume()
        wait_for_end([held])
        written = tiny.work_of(stage, store=store) / "output"
        assert any(written.iterdir())
        assert not (folder / "artifacts" / stage).exists(), "what nobody has looked at is not published"

        began = time.monotonic()
        driven = tiny.drive(StageName.WRITE_REPORT, *command, hold=following)
        wait_for(lambda: stage in driven.statuses, timeout_s=300, what=f"the end of {stage}")  # noqa: B023
        recoveries_s.append(time.monotonic() - began)
        before = SHORT_STAGES[: SHORT_STAGES.index(stage)]
        assert {done: driven.statuses[done] for done in before} == dict.fromkeys(before, "reused")
        assert driven.statuses[stage] == "ran"
        assert tiny.content_of(stage, name)
        assert len(list((folder / "attempts" / stage).glob("*/attempt-*"))) == 2, "the killed one and its successor"
    assert driven.wait() == 0, driven.text
    for stage in SHORT_STAGES[:-1]:  # the report names its run, so no two are equal
        assert tiny.content_of(stage, name) == tiny.content_of(stage, "undisturbed"), stage
    assert not (folder / "attempts" / REWARD).exists(), "no training was touched"
    fault.recovered(
        seen=f"{len(recoveries_s)} of {len(SHORT_STAGES)}: its stage ends with it, nothing of it is published; the "
        "same command reuses what was finished and makes that stage again, with the same content",
        repeated="that stage",
        recovery_s=max(recoveries_s),
    )


def test_kill_9_of_the_orchestrator_while_its_stage_is_starting(
    tiny: TinyProject, undisturbed: Reference, fault: Fault
) -> None:
    fault.describe(
        "crashes",
        "`kill -9` of the orchestrator while the interpreter of its stage starts",
        parts="orchestrator, stage",
    )
    name, store = "orphaned-early", "orphaned-early-store"
    command = (f"run.name={name}", f"run.store_dir=outputs/{store}")
    driven = tiny.drive(StageName.FILTER_DATASET, *command)
    (orphan,) = wait_for(lambda: list(stage_processes(driven.process.pid)), of=driven, what="the stage's process")
    orphan.suspend()
    driven.kill()
    orphan.resume()
    wait_for_end([orphan])
    work = tiny.work_of(StageName.FILTER_DATASET, store=store)
    assert isinstance(read_outcome(work), StageFailure | None), "it did not work on without its orchestrator"
    fault.recovery_starts()
    again = tiny.drive(StageName.FILTER_DATASET, *command)
    assert again.wait() == 0, again.text
    assert tiny.content_of(StageName.FILTER_DATASET, name) == tiny.content_of(StageName.FILTER_DATASET, "undisturbed")
    fault.recovered(seen="its stage does not begin; the same command makes it, with the same content")


def test_a_stage_that_dies_each_time(tiny: TinyProject, undisturbed: Reference, fault: Fault) -> None:
    fault.describe("crashes", f"`kill -9` of the program of {REWARD}, as often as it starts", parts="stage process")
    name, store, setting = own_store(tiny, "crash-loop", REWARD)
    driven = tiny.drive(REWARD, f"run.name={name}", setting, "runtime.retries=2")
    fault.recovery_starts()

    def ended() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in stage_processes(driven.process.pid):
                process.kill()
        return driven.process.poll() is not None

    wait_for(ended, timeout_s=120, what="the end of the run")
    assert driven.wait() == 1, driven.text
    error = driven.events[-1]["text"]
    assert f"{REWARD} failed ({FailureKind.CONTAINER_LOST})" in error
    assert "It was tried 3 times in this run, the last ones without any progress." in error
    attempts = (tiny.folder / "outputs" / store / "attempts" / REWARD).glob("*/attempt-*")
    assert len([path for path in attempts if (path / "failure.json").is_file()]) == 3, "each left its own record"
    assert not (tiny.folder / "outputs" / store / "artifacts" / REWARD).exists()
    fault.recovered(
        seen="given up after 3 attempts without progress (runtime.retries 2), and says so; nothing is published"
    )
