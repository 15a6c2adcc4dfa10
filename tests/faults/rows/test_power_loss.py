"""The power fails: programs are gone at once, and of what was written last only the names are on the disk."""

from pathlib import Path

import pytest
from fault_rows import Fault
from reference import REWARD, Reference, own_store
from stage_alone import StageAlone
from tiny_project import TinyProject, notes, recorded_steps, weights_digest

from containers.contracts.outcome import FailureKind

pytestmark = [pytest.mark.slow, pytest.mark.stages]

PARTS = "stage process, files"


def empty_all_files(folder: Path) -> int:
    """What a file system leaves that had put off the writing: names without content. Returns how many."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        path.write_bytes(b"")
    return len(files)


def cut_events_behind(work: Path, step: int) -> None:
    """Leave the events up to that step, whose checkpoint has them on the disk, and half of the line behind."""
    path = work / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(
        number for number, line in enumerate(lines) if b'"metrics"' in line and f'"step": {step},'.encode() in line
    )
    path.write_bytes(b"".join(lines[: last + 1]) + lines[last + 1][: len(lines[last + 1]) // 2])


def test_power_fails_while_a_checkpoint_is_saved(
    tiny: TinyProject, undisturbed: Reference, fault: Fault, tmp_path: Path
) -> None:
    fault.describe(
        "training",
        "power loss while checkpoint-20 is saved: `kill -9`, then its files and the manifest before it are empty, and "
        "the events are cut in the middle of a line",
        parts=PARTS,
    )
    stage = StageAlone.of(tiny, REWARD, tmp_path)
    failure = stage.attempt("manifest", "20")
    assert failure is not None and failure.kind is FailureKind.CONTAINER_LOST
    assert stage.checkpoints[-2:] == ["checkpoint-15", "checkpoint-20"]
    num_emptied = empty_all_files(stage.work / "checkpoints/checkpoint-20")
    (stage.work / "checkpoints/checkpoint-15/checkpoint_manifest.json").write_bytes(b"")
    cut_events_behind(stage.work, 10)
    fault.recovery_starts()
    assert stage.attempt() is None
    stage.assert_bit_for_bit(undisturbed)
    assert stage.resumed_from() == 10
    assert set(recorded_steps(stage.work)) == set(range(1, 41))
    assert any("checkpoint-15" in note and "its manifest cannot be read" in note for note in notes(stage.work))
    fault.recovered(
        seen=f"{num_emptied} empty files of checkpoint-20 and the empty manifest of checkpoint-15 are recognised and "
        "named; goes on from checkpoint-10, weights and curves bit for bit",
        repeated="10 steps of 40 (saved every 5)",
    )


def test_power_fails_after_an_artifact_was_published(tiny: TinyProject, undisturbed: Reference, fault: Fault) -> None:
    fault.describe(
        "artifacts", "power loss after the model was published: every file of it is empty", parts="artifact store"
    )
    name, store, setting = own_store(tiny, "power", REWARD)
    first = tiny.drive(REWARD, f"run.name={name}", setting)
    assert first.wait() == 0, first.text
    artifact = tiny.artifact(REWARD, name)
    num_emptied = empty_all_files(artifact)
    fault.recovery_starts()
    again = tiny.drive(REWARD, f"run.name={name}", setting)
    assert again.wait() == 0, again.text
    assert again.statuses[REWARD] == "ran"
    assert weights_digest(tiny.artifact(REWARD, name)) == undisturbed.weights[REWARD]
    work = tiny.work_of(REWARD, store=store)
    assert work is not None
    steps = recorded_steps(work)
    repeated = len(steps) - len(set(steps))
    assert repeated <= 5
    fault.recovered(
        seen=f"{num_emptied} empty files: set aside with what is wrong with it; made again from the last checkpoint, "
        "the same weights",
        repeated=f"{repeated} steps of 40",
    )
