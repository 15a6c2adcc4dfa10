"""A training that does not fit where it is put: a failure changes how the next attempt works, not what it makes."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from fault_rows import Fault
from reference import POLICY, REWARD, SAVES_EVERY, Reference, own_store
from tiny_project import Driven, TinyProject, curves, notes, recorded_steps

from containers.contracts.digests import read_manifest
from containers.contracts.names import SPEC_FILE, StageName
from containers.contracts.outcome import FailureKind
from containers.contracts.spec import StageSpec

pytestmark = [pytest.mark.slow, pytest.mark.stages]

AREA = "training"
DRIVER = Path(__file__).parents[1] / "drive_too_small.py"
# Sums in another order: the bound of tests/unit/containers/distributed/test_ranks_agree.py, over more steps.
TOLERANCE = 2e-5


@dataclass(frozen=True)
class Climb:
    """One run on a machine that is too small."""

    driven: Driven
    specs: list[StageSpec]
    work: Path
    name: str

    @property
    def said(self) -> str:
        return "\n".join(event["said"] for event in self.driven.events if "said" in event)


def climb(tiny: TinyProject, machine: tuple[str, int, int], stage: StageName, name: str, *overrides: str) -> Climb:
    """Run the stages up to this one; WHAT, ROOM and STEP as in `too_small_machine.py`."""
    name, store, setting = own_store(tiny, name, stage)
    command = [sys.executable, str(DRIVER), *map(str, machine), stage.value, "configs/runs/tiny.yaml"]
    padded = f"{stage}.pack=false"  # the machine counts rows, which packs do not have
    driven = tiny._start(command, (f"run.name={name}", setting, padded, *overrides), None)
    driven.wait(timeout_s=900)
    work = tiny.work_of(stage, store=store)
    assert work is not None, driven.text
    attempts = tiny.folder / "outputs" / store / "attempts" / stage / work.name
    paths = sorted(attempts.glob(f"attempt-*/{SPEC_FILE}"), key=lambda path: int(path.parent.name.rpartition("-")[2]))
    return Climb(driven, [StageSpec.model_validate_json(path.read_bytes()) for path in paths], work, name)


def largest_difference(tiny: TinyProject, climbed: Climb, stage: StageName, reference: Reference) -> float:
    """Of any point of the loss curve to the undisturbed one; every step is there."""
    found, wanted = curves(tiny.artifact(stage, climbed.name)), reference.curves[stage]
    name = "reward" if stage is POLICY else "loss"
    steps = {step for step, values in wanted.items() if name in values}
    assert {step for step, values in found.items() if name in values} == steps
    return max(abs(found[step][name] - wanted[step][name]) for step in steps)


def repeated(climbed: Climb, stage: StageName) -> str:
    steps = recorded_steps(climbed.work)
    twice = len(steps) - len(set(steps))
    assert twice <= SAVES_EVERY[stage] * (len(climbed.specs) - 1)
    return f"{twice} steps of {max(steps)} (saved every {SAVES_EVERY[stage]})"


@pytest.mark.parametrize("stage", [REWARD, POLICY])
def test_a_full_gpu(tiny: TinyProject, undisturbed: Reference, fault: Fault, stage: StageName) -> None:
    step, limit = (13, 2) if stage is REWARD else (7, 2)
    fault.describe(
        AREA, f"torch.OutOfMemoryError in {stage} from step {step} on, until one example per forward and gradient "
        "checkpointing are reached", parts="orchestrator, stage process; the error is raised, there is no GPU"
    )  # fmt: skip
    fault.recovery_starts()
    climbed = climb(
        tiny,
        ("gpu_memory", 1, step),
        stage,
        "full-gpu",
        f"gpu_profile.max_per_device_batch_size={limit}",
    )
    assert climbed.driven.process.returncode == 0, climbed.driven.text
    assert [spec.batch.per_device_batch_size for spec in climbed.specs] == [2, 1, 1]
    assert [getattr(spec.config, "gradient_checkpointing") for spec in climbed.specs] == [False, False, True]  # noqa: B009
    assert len({spec.key for spec in climbed.specs}) == 1
    resumed = [note for note in notes(climbed.work) if note.startswith("Resuming from")]
    assert len(resumed) == 2, "each attempt after the first goes on from a checkpoint"
    assert read_manifest(tiny.artifact(stage, climbed.name)).ladder == climbed.specs[-1].ladder
    difference = largest_difference(tiny, climbed, stage, undisturbed)
    assert difference < TOLERANCE
    assert "with gradient checkpointing on" in climbed.said
    fault.recovered(
        seen="3 attempts of one key: per-device batch 2 → 1 with twice the accumulation, then gradient checkpointing; "
        "each goes on from the last checkpoint; the curve differs from the undisturbed run's by at most "
        f"{difference:.0e}",
        repeated=repeated(climbed, stage),
    )


def test_a_full_gpu_and_no_fallback_left(tiny: TinyProject, undisturbed: Reference, fault: Fault) -> None:
    fault.describe(
        AREA,
        f"torch.OutOfMemoryError in {REWARD}, whatever is changed",
        parts="orchestrator, stage process; the error is raised, there is no GPU",
    )
    fault.recovery_starts()
    climbed = climb(tiny, ("gpu_memory", 0, 1), REWARD, "no-fallback", "gpu_profile.max_per_device_batch_size=1")
    assert climbed.driven.process.returncode == 1
    error = climbed.driven.events[-1]["text"]
    assert f"{REWARD} failed ({FailureKind.OUT_OF_GPU_MEMORY})" in error
    assert "It was tried 2 times in this run, at last with gradient checkpointing on" in error
    assert "the per-device batch is 1 already" in error
    fault.recovered(seen="2 attempts, then refused (out_of_gpu_memory): says what was tried, and why no more was")


def test_a_full_gpu_with_the_ladder_switched_off(tiny: TinyProject, undisturbed: Reference, fault: Fault) -> None:
    fault.describe(
        AREA,
        f"torch.OutOfMemoryError in {REWARD} with runtime.ladder.enabled false",
        parts="orchestrator, stage process; the error is raised, there is no GPU",
    )
    fault.recovery_starts()
    climbed = climb(tiny, ("gpu_memory", 1, 1), REWARD, "ladder-off", "runtime.ladder.enabled=false")
    assert climbed.driven.process.returncode == 1
    assert len(climbed.specs) == 1
    fault.recovered(seen="one attempt, classified out_of_gpu_memory, not tried again")


def test_a_rank_hangs_as_often_as_there_are_two(tiny: TinyProject, undisturbed: Reference, fault: Fault) -> None:
    fault.describe(
        AREA,
        f"{REWARD} on two ranks, of which one hangs (SIGSTOP) in step 13 of every attempt",
        parts="orchestrator, torchrun, gloo, two processes",
    )
    fault.recovery_starts()
    climbed = climb(
        tiny,
        ("ranks", 1, 13),
        REWARD,
        "hanging-rank",
        "gpu_profile.num_processes=2",
        "gpu_profile.collective_timeout_s=30",
    )
    assert climbed.driven.process.returncode == 0, climbed.driven.text
    assert [spec.batch.num_processes for spec in climbed.specs] == [2, 2, 1]
    assert [fallback.after for fallback in climbed.specs[-1].ladder] == [FailureKind.NCCL_TIMEOUT] * 2
    resumed = [note for note in notes(climbed.work) if note.startswith("Resuming from")]
    assert resumed == ["Resuming from checkpoint-10."] * 2, "one rank goes on from what two have saved"
    difference = largest_difference(tiny, climbed, REWARD, undisturbed)
    assert difference < TOLERANCE
    fault.recovered(
        seen="classified nccl_timeout twice; the second attempt is the same, the third has one rank, and goes on from "
        f"what two ranks saved; the curve differs from the undisturbed run's by at most {difference:.0e}",
        repeated=repeated(climbed, REWARD),
    )
