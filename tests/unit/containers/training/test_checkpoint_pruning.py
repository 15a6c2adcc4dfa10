"""An old checkpoint is deleted only when it is certain that nobody needs it: after a newer one was read back whole."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.training import checkpoints
from containers.training.checkpoints import CheckpointManifestCallback, checkpoint_flaw, newest_valid_checkpoint
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    return make_context(tmp_path, StageName.TRAIN_REWARD_MODEL, TrainRewardModelConfig(), {})


def _save(context: StageContext, step: int, *, best_step: int | None = None, limit: int = 2) -> Path:
    """A checkpoint as the Trainer leaves it, and then what our callback makes of it."""
    folder = context.checkpoints / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "optimizer.pt").write_bytes(b"moments" * 100)
    best = None if best_step is None else f"/elsewhere/checkpoint-{best_step}"
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "best_model_checkpoint": best}))
    callback = CheckpointManifestCallback(context.spec, context.recorder, limit=limit)
    arguments = TrainingArguments(output_dir=str(context.checkpoints), use_cpu=True, report_to="none")
    state = TrainerState(global_step=step, is_world_process_zero=True)
    callback.on_save(arguments, state, TrainerControl())
    return folder


def _left(context: StageContext) -> list[str]:
    return sorted(path.name for path in context.checkpoints.iterdir())


def test_the_newest_by_step_are_kept_also_where_the_clock_was_set_back(context: StageContext) -> None:
    """By modification time the newest one would be deleted right after it was saved."""
    for step in (8, 96):
        folder = _save(context, step)
        os.utime(folder, (2_000_000_000 - step, 2_000_000_000 - step))
    _save(context, 104)
    assert _left(context) == ["checkpoint-104", "checkpoint-96"]


def test_the_best_checkpoint_of_every_kept_one_is_kept(context: StageContext) -> None:
    _save(context, 8, best_step=8)
    _save(context, 16, best_step=8)
    _save(context, 24, best_step=24)
    assert _left(context) == ["checkpoint-16", "checkpoint-24", "checkpoint-8"], "16 needs 8, should 24 be damaged"
    _save(context, 32, best_step=24)
    assert _left(context) == ["checkpoint-24", "checkpoint-32"]


def test_nothing_is_deleted_for_a_checkpoint_that_does_not_read_back(
    context: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(context, 8)
    _save(context, 16)
    write = checkpoints.write_checkpoint_manifest

    def failing_disk(checkpoint: Path, **rest: Any) -> None:
        write(checkpoint, **rest)
        (checkpoint / "optimizer.pt").write_bytes(b"\0" * 700)

    monkeypatch.setattr(checkpoints, "write_checkpoint_manifest", failing_disk)
    _save(context, 24)
    assert _left(context) == ["checkpoint-16", "checkpoint-24", "checkpoint-8"]
    notes = (context.work / "events.jsonl").read_text()
    assert "checkpoint-24 does not read back as it was written: optimizer.pt does not match its manifest" in notes


def test_a_damaged_older_one_stops_pruning_for_nobody_knows_its_best(context: StageContext) -> None:
    _save(context, 8)
    (_save(context, 16) / "trainer_state.json").write_bytes(b"")
    _save(context, 24)
    assert _left(context) == ["checkpoint-16", "checkpoint-24", "checkpoint-8"]


class _Kill(BaseException):
    """Stands in for the end of a process."""


def test_a_kill_in_the_middle_of_a_deletion_leaves_nothing_that_looks_like_a_checkpoint(
    context: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(context, 8)
    _save(context, 16)

    def kill(path: Path, **_: Any) -> None:
        if path.exists():
            (path / "optimizer.pt").unlink()
            raise _Kill

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", kill)
        with pytest.raises(_Kill):
            _save(context, 24)
    assert _left(context) == ["checkpoint-16", "checkpoint-24", "discarded-checkpoint-8"]
    newest = newest_valid_checkpoint(context.checkpoints, spec=context.spec, recorder=context.recorder)
    assert newest is not None and newest.name == "checkpoint-24"
    assert _left(context) == ["checkpoint-16", "checkpoint-24"]


def test_a_finished_checkpoint_is_whole(context: StageContext) -> None:
    assert checkpoint_flaw(_save(context, 8), spec=context.spec) == ""
