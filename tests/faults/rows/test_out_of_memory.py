"""The kernel runs out of memory and kills somebody: whom, and what becomes of the others."""

from collections.abc import Iterator

import psutil
import pytest
from fault_rows import Fault
from memory_cgroup import MemoryCgroup, kill_first, memory_cgroup
from reference import REWARD, Reference, own_store
from tiny_project import Driven, TinyProject, curves, stage_processes, wait_for, wait_for_end, weights_digest

from containers.contracts.names import MEASURED_FILE, StageName
from containers.contracts.outcome import FailureKind

pytestmark = [pytest.mark.slow, pytest.mark.stages]

AREA = "disk and memory"
# Far less than a stage takes when it imports torch, which it does next.
LEFT_MIB = 20


@pytest.fixture
def group() -> Iterator[MemoryCgroup]:
    with memory_cgroup() as group:
        yield group


def drive_to_import(
    tiny: TinyProject, group: MemoryCgroup, command: tuple[str, ...], *, store: str
) -> tuple[Driven, psutil.Process]:
    """A command in the group, and its stage, which is about to import torch."""
    driven = tiny.drive(REWARD, *command)
    group.add(driven.process)

    def measured() -> bool:
        work = tiny.work_of(REWARD, store=store)
        return work is not None and (work / MEASURED_FILE).is_file()

    wait_for(measured, of=driven, what="the measured contract of the stage")
    (stage,) = stage_processes(driven.process.pid)
    return driven, stage


def test_the_kernel_kills_the_orchestrator_for_memory(
    tiny: TinyProject, undisturbed: Reference, group: MemoryCgroup, fault: Fault
) -> None:
    fault.describe(AREA, f"the kernel kills the orchestrator for memory in {REWARD}", parts="kernel, control group")
    name, store, setting = own_store(tiny, "orchestrator-oom", REWARD)
    command = (f"run.name={name}", setting)
    driven, stage = drive_to_import(tiny, group, command, store=store)
    kill_first(psutil.Process(driven.process.pid))
    group.leave_mib(LEFT_MIB)
    assert driven.wait() == -9, driven.text
    wait_for_end([stage])
    fault.recovery_starts()
    again = tiny.drive(REWARD, *command)
    assert again.wait() == 0, again.text
    assert again.statuses[StageName.BUILD_BASE_MODEL] == "reused"
    artifact = tiny.artifact(REWARD, name)
    assert (weights_digest(artifact), curves(artifact)) == (undisturbed.weights[REWARD], undisturbed.curves[REWARD])
    fault.recovered(
        seen="its stage ends with it; the same command reuses what was finished; weights and curves equal the "
        "undisturbed run's"
    )


def test_the_kernel_kills_a_stage_process_for_memory(
    tiny: TinyProject, undisturbed: Reference, group: MemoryCgroup, fault: Fault
) -> None:
    fault.describe(AREA, f"the kernel kills the program of {REWARD} for memory", parts="kernel, control group")
    name, store, setting = own_store(tiny, "stage-oom", REWARD)
    command = (f"run.name={name}", setting)
    driven, stage = drive_to_import(tiny, group, command, store=store)
    kill_first(stage)
    fault.recovery_starts()
    group.leave_mib(LEFT_MIB)
    assert driven.wait() == 1, driven.text
    error = driven.events[-1]["text"]
    assert f"{REWARD} failed ({FailureKind.OUT_OF_HOST_MEMORY})" in error
    assert "host_memory_gib of profile `cpu`" in error
    attempts = list((tiny.folder / "outputs" / store / "attempts" / REWARD).glob("*/attempt-*"))
    assert len(attempts) == 1, "it is not tried again unchanged"
    fault.recovered(
        seen="classified out_of_host_memory from the kernel's counter, names the setting, not tried again",
    )
