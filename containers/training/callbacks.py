"""The Trainer's callbacks: they write checkpoints, record curves, and end a training that was told to stop."""

import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.contracts.schedule import ResolvedSchedule
from containers.distributed.ranks import any_rank
from containers.harness.errors import DivergedError
from containers.harness.recorder import Recorder
from containers.harness.stopping import StageCancelledError, StopSignal
from containers.training.checkpoints import CHECKPOINT_PREFIX

_PROGRESS_INTERVAL_S = 1.0
# Figures of the Trainer that are no curves: durations and throughput, and the summary at the end of training.
_NO_CURVES = ("epoch", "total_flos", "train_loss")
_NO_CURVE_SUFFIXES = ("_runtime", "_per_second")
# Where one of these is not finite, training is over; it goes on to exit 0 otherwise.
_MUST_BE_FINITE = frozenset(
    {"loss", "grad_norm", "learning_rate", "reward", "kl", "min_reward", "mean_reward", "max_reward", "margin"}
)


class SaveCallback(TrainerCallback):  # type: ignore[misc]
    """Asks for a checkpoint every `save_steps` steps, and at each evaluation with a lower loss than all before it.

    Stands before RecorderCallback, which logs before every save. The Trainer itself saves at the last step.
    """

    def __init__(self, schedule: ResolvedSchedule) -> None:
        self._save_steps = schedule.save_steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save on schedule."""
        if state.global_step % self._save_steps == 0:
            control.should_save = True

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float],
        **_: Any,
    ) -> None:
        """Save what is the best so far; the Trainer compares with the same figure after this."""
        if state.best_metric is None or metrics[args.metric_for_best_model] < state.best_metric:
            control.should_save = True


logger = logging.getLogger(__name__)


class RecorderCallback(TrainerCallback):  # type: ignore[misc]
    """Feeds the recorder with curves and progress, and stops training at the first number that is not finite.

    Training metrics keep their plain names (`loss`, `grad_norm`), evaluation ones begin with `eval_`.

    Args:
        planned_steps: optimizer steps of the whole run.
    """

    def __init__(self, recorder: Recorder, *, planned_steps: int) -> None:
        self.num_steps = 0
        self.last: dict[str, float] = {}
        self._recorder = recorder
        self._planned_steps = planned_steps
        self._told_at_s = -math.inf
        self._saved_step = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Say where training starts."""
        self._saved_step = state.global_step
        self._recorder.progress(state.global_step, self._planned_steps, unit="steps")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Count the step, tell progress at most once a second, and ask for a log line before a save."""
        self.num_steps += 1
        # Log before every save, so that a checkpoint is never written after a number that is not finite.
        control.should_log = control.should_log or control.should_save or control.should_evaluate
        now = time.monotonic()
        if now - self._told_at_s >= _PROGRESS_INTERVAL_S or state.global_step >= self._planned_steps:
            self._told_at_s = now
            # RLOO's loss is near zero whatever happens; its reward says how it goes.
            name = "reward" if "reward" in self.last else "loss"
            figure = f"{name} {self.last[name]:.4f}" if name in self.last else ""
            self._recorder.progress(state.global_step, self._planned_steps, unit="steps", text=figure)
            logger.info("%s", f"step {state.global_step} of {self._planned_steps} {figure}".rstrip())

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Keep the step in mind, for the message of a training that diverges later."""
        self._saved_step = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Record the curves; raise DivergedError where one that must be finite is not."""
        curves = {
            name: float(value)
            for name, value in (logs or {}).items()
            if isinstance(value, int | float) and name not in _NO_CURVES and not name.endswith(_NO_CURVE_SUFFIXES)
        }
        if not curves:
            return
        self._recorder.metrics(state.global_step, curves)
        self.last |= curves
        for name, value in curves.items():
            if name.removeprefix("eval_") in _MUST_BE_FINITE and not math.isfinite(value):
                raise DivergedError(
                    f"{name} is {value} at step {state.global_step} of {self._planned_steps}. Nothing was saved from "
                    f"here on; {self._last_checkpoint()}. Lower optimizer.learning_rate ({args.learning_rate:g}), or "
                    "look at that step's data."
                )

    def _last_checkpoint(self) -> str:
        return f"checkpoint-{self._saved_step} is the last one" if self._saved_step else "there is no checkpoint"


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
