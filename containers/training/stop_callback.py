"""The Trainer's callback that ends a training which was told to stop, with a checkpoint to go on from exactly."""

import math
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.distributed.ranks import any_rank
from containers.harness.recorder import Recorder
from containers.harness.stopping import StageCancelledError, StopSignal
from containers.training.checkpoints import CHECKPOINT_PREFIX


class StopCallback(TrainerCallback):  # type: ignore[misc]
    """Saves after the first step at which a stop was requested and a resume is exact, and raises StageCancelledError.

    Stands behind RecorderCallback, which decides on logging, and CheckpointManifestCallback, which finishes the save.
    Records how often a stop is possible and how long a save took, from which the runtime finds how long to wait.

    Args:
        exact_every: a resume is exact only at multiples of this: RLOO's generated batch is in no checkpoint.
    """

    def __init__(self, stop: StopSignal, recorder: Recorder, *, exact_every: int) -> None:
        self._stop = stop
        self._recorder = recorder
        self._exact_every = exact_every
        self._stepped_at_s = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Say how often this training can stop."""
        self._recorder.stopping(stops_every=self._stops_every(args))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Ask for a save, where the run that nobody stopped would go on in the same way from it."""
        self._stepped_at_s = time.monotonic()
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
        is_requested = any_rank(self._stop.requested)
        save_s = time.monotonic() - self._stepped_at_s
        self._recorder.stopping(stops_every=self._stops_every(args), save_s=save_s)
        if not is_requested:
            return
        checkpoint = Path(args.output_dir) / f"{CHECKPOINT_PREFIX}{state.global_step}"
        raise StageCancelledError(
            f"The stage was stopped (SIGTERM) after step {state.global_step}, which {checkpoint.name} holds. Start it "
            "again and it goes on from there."
        )

    def _stops_every(self, args: TrainingArguments) -> int:
        return math.lcm(int(args.logging_steps), self._exact_every)
