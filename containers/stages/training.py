"""What every training stage does with its Trainer: callbacks, resume, the training itself, and the proof of its end."""

import contextlib
from pathlib import Path
from typing import Any

from torch import distributed
from transformers import PrinterCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback

from containers.stages.checkpoints import CheckpointManifestCallback, newest_valid_checkpoint
from containers.stages.context import StageContext
from containers.stages.errors import StageError
from containers.stages.models import check_finite
from containers.stages.ranks import is_first_rank
from containers.stages.recorder_callback import RecorderCallback


def training_callbacks(context: StageContext, *, planned_steps: int) -> list[TrainerCallback]:
    """Curves and guards, checkpoint manifests, and TensorBoard files on the first rank."""
    callbacks = [
        RecorderCallback(context.recorder, planned_steps=planned_steps),
        CheckpointManifestCallback(context.spec),
    ]
    if is_first_rank():
        from torch.utils.tensorboard import SummaryWriter

        callbacks.append(TensorBoardCallback(SummaryWriter(str(context.tensorboard))))
    return callbacks


def quieten(trainer: Any) -> None:
    """Take the Trainer's printing of every log line away; the recorder has the curves, and says how far it is."""
    trainer.remove_callback(PrinterCallback)


def resume_point(context: StageContext) -> Path | None:
    """The newest checkpoint of an earlier attempt that is whole, the same on every rank; None starts at step 0."""
    found: list[Path | None] = [None]
    if is_first_rank():
        found = [newest_valid_checkpoint(context.checkpoints, spec=context.spec, recorder=context.recorder)]
    if distributed.is_initialized():
        distributed.broadcast_object_list(found)
    if found[0] is not None:
        context.recorder.note(f"Resuming from {found[0].name}.")
    return found[0]


class _AlreadyTrainedError(Exception):
    """The checkpoint holds the last step; there is nothing to train."""


class _StopBeforeFirstStep(TrainerCallback):  # type: ignore[misc]
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        raise _AlreadyTrainedError


def train(trainer: Any, checkpoint: Path | None, *, planned_steps: int) -> None:
    """Train from `checkpoint` to the last step; from a checkpoint of the last step, only take its weights and state.

    The Trainer itself does one step more when it resumes at the end (70 planned, 71 done), so that a stage killed
    between its last checkpoint and its manifest could never be finished.
    """
    resume_from = None if checkpoint is None else str(checkpoint)
    if checkpoint_step(checkpoint) != planned_steps:
        trainer.train(resume_from_checkpoint=resume_from)
        return
    trainer.add_callback(_StopBeforeFirstStep())
    with contextlib.suppress(_AlreadyTrainedError):
        trainer.train(resume_from_checkpoint=resume_from)
    if trainer.args.load_best_model_at_end:
        trainer._load_best_model()


def checkpoint_step(checkpoint: Path | None) -> int | None:
    """The optimizer step of a checkpoint folder: 40 for `checkpoint-40`."""
    return None if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def verify_training(trainer: Any, *, planned_steps: int) -> None:
    """Raise unless training did all its steps, kept its best checkpoint, and ended with finite weights.

    The exit code of a Trainer says none of this.

    Raises:
        StageError: fewer steps than planned, or the best checkpoint is gone.
        DivergedError: a weight is not finite.
    """
    state = trainer.state
    if state.global_step != planned_steps:
        raise StageError(f"Training ended at step {state.global_step}, {planned_steps} were planned.")
    best = state.best_model_checkpoint
    if trainer.args.load_best_model_at_end and (best is None or not Path(best).is_dir()):
        raise StageError(f"The best checkpoint ({best}) is gone, so the last weights would have been taken for it.")
    check_finite(trainer.model, name=f"the model after {planned_steps} steps")
