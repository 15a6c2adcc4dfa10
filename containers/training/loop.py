"""The training loop of every training stage: resume, training, and verification."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import TrainerCallback

from containers.distributed.ranks import is_first_rank, of_all_ranks
from containers.harness.context import StageContext
from containers.harness.errors import StageError
from containers.models.loading import check_finite
from containers.training.checkpoints import (
    best_of,
    checkpoint_flaw,
    checkpoint_step,
    newest_valid_checkpoint,
)
from containers.training.largest import KnowsLargest, LargestPackCallback


def resume_point(context: StageContext) -> Path | None:
    """Return the newest whole checkpoint of an earlier attempt, the same on every rank; None: start at step 0.

    Raises:
        MissingPrerequisiteError: there are finished checkpoints, and all are damaged.
    """
    found = None
    if is_first_rank():
        found = newest_valid_checkpoint(context.checkpoints, spec=context.spec, recorder=context.recorder)
    checkpoint = of_all_ranks(found)[0]
    if checkpoint is not None:
        context.recorder.note(f"Resuming from {checkpoint.name}.")
    return checkpoint


class _AlreadyTrainedError(Exception):
    """The checkpoint holds the last step; there is nothing to train."""


class _Resume(TrainerCallback):  # type: ignore[misc]
    """Checks that training resumes at the checkpoint's step, and restores state that the Trainer loses."""

    def __init__(self, trainer: Any, checkpoint: Path, *, last_step: int) -> None:
        self._trainer = trainer
        self._checkpoint = checkpoint
        self._last_step = last_step

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = checkpoint_step(self._checkpoint)
        if state.global_step != step:
            raise StageError(
                f"Training should resume from {self._checkpoint.name} but began at step {state.global_step}."
            )
        # The Trainer keeps an absolute path, and drops it if the folder was moved.
        best = best_of(self._checkpoint)
        state.best_model_checkpoint = None if best is None else str(best)
        # TRL keeps its count of tokens only in the trainer, not in the checkpoint.
        tokens = [entry["num_tokens"] for entry in state.log_history if "num_tokens" in entry]
        if tokens and hasattr(self._trainer, "_total_train_tokens"):
            self._trainer._total_train_tokens = int(tokens[-1])
        if step == self._last_step:
            raise _AlreadyTrainedError


def train(context: StageContext, trainer: Any, checkpoint: Path | None, *, planned_steps: int, last_step: int) -> None:
    """Train from `checkpoint` to the last step; if it is at the last step, only load its weights and state.

    The Trainer alone would do one step too many when it resumes at the end (70 planned, 71 done). A stage killed
    between its last checkpoint and its manifest could then never finish.

    Args:
        last_step: the step after which training ends, as far as is known: earlier than planned if a checkpoint says so.

    Raises:
        StageCancelledError: a stop was requested; the message names the checkpoint.
        StageError: the checkpoint is past the last step, or training does not begin at the checkpoint's step.
    """
    step = checkpoint_step(checkpoint)
    if step is not None and step > planned_steps:
        raise StageError(
            f"checkpoint-{step} is past the last step, {planned_steps}, so a resume would do nothing. Delete the "
            "checkpoints of this stage to train anew."
        )
    # GPUs only: on a CPU, ranks have `cpu:0`, `cpu:1`, which safetensors does not know.
    if isinstance(trainer.model, PeftModel) and trainer.args.device.type == "cuda":
        # PEFT alone would pass `cuda`, which safetensors takes for the first GPU: every rank would load to it.
        trainer.model.load_adapter = partial(trainer.model.load_adapter, torch_device=str(trainer.args.device))
    if checkpoint is not None:
        trainer.add_callback(_Resume(trainer, checkpoint, last_step=last_step))
    if isinstance(trainer, KnowsLargest):
        trainer.add_callback(LargestPackCallback(trainer, context.recorder))
    with context.stop.after_step(), contextlib.suppress(_AlreadyTrainedError):
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if step == last_step and trainer.args.load_best_model_at_end:
        trainer._load_best_model()


def verify_training(trainer: Any, *, last_step: int) -> None:
    """Raise unless training did all its steps, kept its best checkpoint whole, and ended with finite weights.

    The Trainer's exit code shows none of this.

    Raises:
        StageError: fewer steps than planned; or the best checkpoint, whose weights are used, is damaged, gone, or not
            that of the best step.
        DivergedError: a weight is not finite.
    """
    state = trainer.state
    if state.global_step != last_step:
        raise StageError(f"Training ended at step {state.global_step}, {last_step} were planned.")
    best = state.best_model_checkpoint
    if trainer.args.load_best_model_at_end:
        if best is None or not Path(best).is_dir():
            raise StageError(f"The best checkpoint ({best}) is gone, so the last weights would have been used instead.")
        if checkpoint_step(Path(best)) != state.best_global_step:
            raise StageError(
                f"The weights are those of {Path(best).name}, but the lowest loss ({state.best_metric}) was at step "
                f"{state.best_global_step}, which has no checkpoint."
            )
        if is_first_rank() and (flaw := checkpoint_flaw(Path(best))):
            raise StageError(
                f"The best checkpoint, {Path(best).name}, was damaged since it was saved: {flaw}. Start the stage "
                "again and it resumes from one that is whole."
            )
    check_finite(trainer.model, name=f"the model after {last_step} steps")
