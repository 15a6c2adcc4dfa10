"""Saves that are cut off, checkpoints that rot, and trainings that are told to stop: each goes on exactly, or says why.

Every test starts the real program of a training stage under the process runtime.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_rows import Fault
from reference import POLICY, REWARD, Reference, own_store
from stage_alone import StageAlone
from tiny_project import TinyProject, notes, recorded_steps

from containers.contracts.names import StageName
from containers.contracts.outcome import FailureKind
from containers.training.checkpoints import checkpoint_flaw

pytestmark = [pytest.mark.slow, pytest.mark.stages]

AREA = "training"
PARTS = "stage process"


@pytest.mark.parametrize(
    ("point", "text", "resumed"),
    [
        ("model", "in the middle of the model's file", 15),
        ("optimizer", "between model and optimizer", 15),
        ("manifest", "before its manifest", 15),
        ("pruning", "in the middle of deleting an older one", 20),
    ],
    ids=["model", "optimizer", "manifest", "pruning"],
)
def test_kill_9_inside_a_save(
    tiny: TinyProject, undisturbed: Reference, fault: Fault, tmp_path: Path, point: str, text: str, resumed: int
) -> None:
    fault.describe(AREA, f"`kill -9` while checkpoint-20 is saved, {text}", parts=PARTS)
    stage = StageAlone.of(tiny, REWARD, tmp_path)
    failure = stage.attempt(point, "20")
    assert failure is not None and failure.kind is FailureKind.CONTAINER_LOST, failure
    left = stage.checkpoints
    fault.recovery_starts()
    assert stage.attempt() is None
    stage.assert_bit_for_bit(undisturbed)
    assert stage.resumed_from() == resumed
    assert not [name for name in stage.checkpoints if name.startswith("discarded")]
    fault.recovered(
        seen=f"it left {', '.join(left)}; goes on from checkpoint-{resumed}, bit for bit",
        repeated=f"{stage.repeated} steps of 40 (saved every 5)",
    )


FILES = ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "missing": lambda content: None,
    "one bit": lambda content: (
        content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :]
    ),
}


def _damage(path: Path, kind: str) -> None:
    damaged = DAMAGE[kind](path.read_bytes())
    path.unlink() if damaged is None else path.write_bytes(damaged)


def test_the_newest_checkpoint_is_damaged(
    tiny: TinyProject, undisturbed: Reference, fault: Fault, tmp_path: Path
) -> None:
    cases = [(file, kind) for file in FILES for kind in DAMAGE]
    fault.describe(
        AREA,
        f"newest checkpoint damaged, {len(cases)} ways: each of {', '.join(FILES)} × {', '.join(DAMAGE)}",
        parts="stage process, files",
    )
    stages = []
    for number, (file, kind) in enumerate(cases):
        stage = StageAlone.of(tiny, REWARD, tmp_path / str(number)).finished_before(tiny)
        _damage(stage.work / "checkpoints/checkpoint-40" / file, kind)
        stages.append(stage)
    fault.recovery_starts()
    stages[0].attempt_with(stages[1:])
    for stage, (file, kind) in zip(stages, cases, strict=True):
        case = f"{file}, {kind}"
        stage.assert_bit_for_bit(undisturbed)
        assert stage.resumed_from() == 35, case
        wanted = f"checkpoint-40 was set aside as damaged-checkpoint-40: {file} does not match its manifest."
        assert wanted in notes(stage.work), case
    fault.recovered(
        seen=f"{len(cases)} of {len(cases)}: set aside with the file's name, goes on from checkpoint-35, bit for bit",
        repeated="5 steps of 40 (saved every 5) in each",
    )


def test_all_checkpoints_are_damaged(tiny: TinyProject, undisturbed: Reference, fault: Fault, tmp_path: Path) -> None:
    fault.describe(AREA, "every checkpoint damaged", parts="stage process, files")
    stage = StageAlone.of(tiny, REWARD, tmp_path).finished_before(tiny)
    finished = stage.checkpoints
    for name in finished:
        _damage(stage.work / "checkpoints" / name / "optimizer.pt", "empty")
    failure = stage.attempt()
    assert failure is not None and failure.kind is FailureKind.MISSING_PREREQUISITE
    assert all(f"{name}: optimizer.pt does not match its manifest" in failure.message for name in finished)
    assert stage.checkpoints == finished, "nothing was moved: the disk may be readable again tomorrow"
    fault.recovery_starts()
    shutil.rmtree(stage.work / "tensorboard")
    (stage.work / "events.jsonl").unlink()
    assert stage.changed(start_over_if_damaged=True).attempt() is None
    assert stage.resumed_from() == 0
    stage.assert_bit_for_bit(undisturbed)
    fault.recovered(
        seen=f"refused ({failure.kind}) with the file of each of the {len(finished)}; starts over, bit for bit, only "
        "where runtime.start_over_if_damaged allows it",
        lost="what the damaged files held",
        repeated=f"{len(set(recorded_steps(stage.work)))} steps of 40, allowed by a person",
    )


@pytest.mark.parametrize(("name", "step"), [(REWARD, 12), (POLICY, 7)])
def test_a_training_is_cancelled(
    tiny: TinyProject, undisturbed: Reference, fault: Fault, tmp_path: Path, name: StageName, step: int
) -> None:
    fault.describe(AREA, f"SIGTERM in {name} at step {step}", parts=PARTS)
    stage = StageAlone.of(tiny, name, tmp_path)
    failure = stage.attempt(stop_at=step)
    assert failure is not None and failure.kind is FailureKind.CANCELLED
    newest = stage.checkpoints[-1]
    assert f"which {newest} holds" in failure.message
    assert checkpoint_flaw(stage.work / "checkpoints" / newest, spec=stage.spec) == ""
    fault.recovery_starts()
    assert stage.attempt() is None
    stage.assert_bit_for_bit(undisturbed)
    assert f"checkpoint-{stage.resumed_from()}" == newest
    assert stage.repeated == 0
    fault.recovered(seen=f"ends its step and saves {newest}; goes on from it, bit for bit", repeated="nothing")


def test_the_loss_is_not_a_number(tiny: TinyProject, undisturbed: Reference, fault: Fault, tmp_path: Path) -> None:
    fault.describe(AREA, "the loss of step 13 is NaN", parts=PARTS)
    stage = StageAlone.of(tiny, REWARD, tmp_path)
    failure = stage.attempt("nan", "13")
    assert failure is not None and failure.kind is FailureKind.DIVERGED
    assert "loss is nan at step 13 of 40" in failure.message
    assert stage.checkpoints[-1] == "checkpoint-10"
    assert "checkpoint-10 is the last one" in failure.message
    fault.recovery_starts()
    assert stage.attempt() is None
    assert stage.resumed_from() == 10
    stage.assert_bit_for_bit(undisturbed)
    fault.recovered(
        seen="stops at once (diverged) with step and last good checkpoint; without the NaN it goes on from that",
        repeated=f"{stage.repeated} steps of 40 (saved every 5)",
    )


def test_a_learning_rate_that_explodes(tiny: TinyProject, undisturbed: Reference, fault: Fault) -> None:
    fault.describe(AREA, "learning_rate and weight_decay 1e12, the largest that are taken", parts="orchestrator, stage")
    name, store, setting = own_store(tiny, "exploding", REWARD)
    fault.recovery_starts()
    exploding = [f"train_reward_model.optimizer.{key}=1e12" for key in ("learning_rate", "weight_decay")]
    driven = tiny.drive(REWARD, f"run.name={name}", setting, *exploding)
    assert driven.wait() == 1
    error = driven.events[-1]
    assert "train_reward_model failed (diverged)" in error["text"]
    assert "Lower optimizer.learning_rate (1e+12)" in error["text"]
    attempts = list((tiny.folder / "outputs" / store / f"attempts/{REWARD}").glob("*/attempt-*"))
    assert len(attempts) == 1, "the same work would diverge again"
    assert not (tiny.folder / "outputs" / store / f"artifacts/{REWARD}").exists()
    step = error["text"].partition(" at step ")[2].split()[0]
    fault.recovered(
        seen=f"refused (diverged) at step {step}, not tried again; nothing is published", repeated="nothing"
    )
