"""A checkpoint is believed only where every file of it is whole; the Trainer by itself resumes from half a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError
from containers.training.checkpoints import newest_valid_checkpoint, write_checkpoint_manifest
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages

TWO_RANKS = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=2, gradient_accumulation_steps=1)


def _context(tmp_path: Path, **overrides: Any) -> StageContext:
    return make_context(tmp_path, StageName.TRAIN_REWARD_MODEL, TrainRewardModelConfig(), {}, **overrides)


def _checkpoint(context: StageContext, step: int, *, best_step: int | None = None) -> Path:
    folder = context.checkpoints / f"checkpoint-{step}"
    folder.mkdir()
    for name in ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / name).write_bytes(f"{name} of step {step}".encode() * 20)
    best = None if best_step is None else f"/another/machine/checkpoints/checkpoint-{best_step}"
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "best_model_checkpoint": best}))
    write_checkpoint_manifest(folder, spec=context.spec)
    return folder


def _newest(context: StageContext) -> str | None:
    found = newest_valid_checkpoint(context.checkpoints, spec=context.spec, recorder=context.recorder)
    return None if found is None else found.name


def _notes(context: StageContext) -> str:
    path = context.work / "events.jsonl"
    return path.read_text() if path.exists() else ""


def test_the_checkpoint_with_the_most_steps_wins_not_the_last_in_the_alphabet(tmp_path: Path) -> None:
    context = _context(tmp_path)
    for step in (8, 16, 104):
        _checkpoint(context, step)
    assert _newest(context) == "checkpoint-104"


@pytest.mark.parametrize(
    "file", ["adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
)
@pytest.mark.parametrize("damage", ["half", "empty", "missing", "one bit", "link"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_is_taken(
    tmp_path: Path, file: str, damage: str
) -> None:
    context = _context(tmp_path)
    _checkpoint(context, 8)
    victim = _checkpoint(context, 16) / file
    content = victim.read_bytes()
    victim.unlink()
    if damage == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        victim.symlink_to(tmp_path / "elsewhere")
    elif damage != "missing":
        flipped = bytes([content[0] ^ 1]) + content[1:]
        victim.write_bytes({"half": content[: len(content) // 2], "empty": b"", "one bit": flipped}[damage])
    assert _newest(context) == "checkpoint-8"
    assert sorted(path.name for path in context.checkpoints.iterdir()) == ["checkpoint-8", "damaged-checkpoint-16"]
    assert "checkpoint-16 was set aside as damaged-checkpoint-16" in _notes(context)


def test_a_checkpoint_that_was_never_finished_is_deleted_and_training_starts_by_itself(tmp_path: Path) -> None:
    """A kill in the first save costs nothing that anybody could keep."""
    context = _context(tmp_path)
    (_checkpoint(context, 8) / "checkpoint_manifest.json").unlink()
    assert _newest(context) is None
    assert "checkpoint-8 was deleted: it has no manifest, so it was never finished." in _notes(context)
    assert "No valid checkpoint, starting at step 0." in _notes(context)
    assert not list(context.checkpoints.iterdir())


def test_older_checkpoints_are_not_read_while_other_ranks_wait(tmp_path: Path) -> None:
    context = _context(tmp_path)
    (_checkpoint(context, 8) / "optimizer.pt").unlink()
    _checkpoint(context, 16)
    assert _newest(context) == "checkpoint-16"
    assert (context.checkpoints / "checkpoint-8").is_dir()
    assert _notes(context) == ""


def test_no_more_than_the_newest_two_damaged_checkpoints_take_room(tmp_path: Path) -> None:
    context = _context(tmp_path)
    for step in (16, 24, 104, 112):
        (_checkpoint(context, step) / "optimizer.pt").unlink()
    _checkpoint(context, 8)
    assert _newest(context) == "checkpoint-8"
    left = sorted(path.name for path in context.checkpoints.iterdir())
    assert left == ["checkpoint-8", "damaged-checkpoint-104", "damaged-checkpoint-112"]


def _all_damaged(tmp_path: Path, **overrides: Any) -> StageContext:
    context = _context(tmp_path, **overrides)
    (_checkpoint(context, 8) / "optimizer.pt").write_bytes(b"")
    (_checkpoint(context, 16) / "checkpoint_manifest.json").write_text("{")
    (_checkpoint(context, 24) / "checkpoint_manifest.json").unlink()
    return context


def test_a_training_whose_finished_checkpoints_are_all_damaged_does_not_start_over_in_silence(tmp_path: Path) -> None:
    """Ten hours of work would be repeated without a word; and a disk may be readable again tomorrow."""
    context = _all_damaged(tmp_path)
    before = sorted(path.relative_to(tmp_path) for path in context.checkpoints.rglob("*"))
    with pytest.raises(MissingPrerequisiteError) as caught:
        _newest(context)
    message = str(caught.value)
    assert "checkpoint-24: it has no manifest, so it was never finished" in message
    assert "checkpoint-16: its manifest cannot be read" in message
    assert "checkpoint-8: optimizer.pt does not match its manifest" in message
    assert f"work/train_reward_model/{context.spec.key}/checkpoints" in message
    assert "runtime.start_over_if_damaged" in message
    assert sorted(path.relative_to(tmp_path) for path in context.checkpoints.rglob("*")) == before


def test_a_training_starts_over_where_that_is_allowed_and_keeps_what_was_damaged(tmp_path: Path) -> None:
    context = _all_damaged(tmp_path, start_over_if_damaged=True)
    assert _newest(context) is None
    left = sorted(path.name for path in context.checkpoints.iterdir())
    assert left == ["damaged-checkpoint-16", "damaged-checkpoint-8"]
    assert "No valid checkpoint, starting at step 0." in _notes(context)


def test_a_checkpoint_whose_best_one_is_damaged_is_not_taken_either(tmp_path: Path) -> None:
    """The Trainer would go on, find no best checkpoint at the end, and keep the last weights with only a warning."""
    context = _context(tmp_path)
    _checkpoint(context, 8, best_step=8)
    (_checkpoint(context, 16, best_step=16) / "optimizer.pt").unlink()
    _checkpoint(context, 24, best_step=16)
    assert _newest(context) == "checkpoint-8"
    assert "the best checkpoint so far, checkpoint-16, is lost" in _notes(context)


def test_a_checkpoint_of_other_work_or_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    writer = _context(tmp_path / "a", batch=TWO_RANKS)
    _checkpoint(writer, 8)
    with pytest.raises(MissingPrerequisiteError, match="it was written by 2 ranks, this stage has 1"):
        _newest(_context(tmp_path / "a"))
    _checkpoint(_context(tmp_path / "b", key="d" * 64), 8)
    with pytest.raises(MissingPrerequisiteError, match="it belongs to key dddddddddddd"):
        _newest(_context(tmp_path / "b"))


def test_no_folder_and_no_checkpoint_start_at_the_beginning_in_silence(tmp_path: Path) -> None:
    context = _context(tmp_path)
    assert newest_valid_checkpoint(tmp_path / "nowhere", spec=context.spec, recorder=context.recorder) is None
    assert _newest(context) is None
    assert _notes(context) == ""
