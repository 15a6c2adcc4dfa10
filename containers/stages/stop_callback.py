"""The Trainer's callback that ends a training which was told to stop, with a checkpoint to go on from exactly."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.stages.checkpoints import CHECKPOINT_PREFIX
from containers.stages.ranks import any_rank
from containers.stages.stopping import StageCancelledError, StopSignal


class StopCallback(TrainerCallback):  # type: ignore[misc]
    """Saves after the first step at which a stop was requested and a resume is exact, and raises StageCancelledError.

    Stands behind RecorderCallback, which decides on logging, and CheckpointManifestCallback, which finishes the save.
    Where such a step takes longer than the runtime waits, the runtime kills, and the last checkpoint stands.

    Args:
        exact_every: a resume is exact only at multiples of this: RLOO's generated batch is in no checkpoint.
    """

    def __init__(self, stop: StopSignal, *, exact_every: int) -> None:
        self._stop = stop
        self._exact_every = exact_every

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Ask for a save, where the run that nobody stopped would go on in the same way from it."""
        if not any_rank(self._stop.requested):
            return
        # What was summed up since the last log line is in no checkpoint.
        if control.should_log and state.global_step % self._exact_every == 0:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End here, where a stop was requested; a checkpoint has just been finished.

        Raises:
            StageCancelledError: names the checkpoint.
        """
        # Asking waits for all ranks, and so for the manifest, which the first one has written by then.
        if not any_rank(self._stop.requested):
            return
        checkpoint = Path(args.output_dir) / f"{CHECKPOINT_PREFIX}{state.global_step}"
        raise StageCancelledError(
            f"The stage was stopped (SIGTERM) after step {state.global_step}, which {checkpoint.name} holds. Start it "
            "again and it goes on from there."
        )
