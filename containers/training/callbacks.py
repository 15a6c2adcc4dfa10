"""Trainer callbacks: request checkpoints, record curves, and end a training on a stop request."""

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.contracts.schedule import ResolvedSchedule
from containers.curve_alarms import AlarmWatch
from containers.distributed.ranks import any_rank
from containers.harness.errors import DivergedError
from containers.harness.recorder import Recorder
from containers.harness.stopping import StageCancelledError, StopSignal
from containers.training.checkpoints import CHECKPOINT_PREFIX

_PROGRESS_INTERVAL_S = 1.0
# Figures of the Trainer that are not curves: durations, throughput, and the summary at the end of training.
_NO_CURVES = ("epoch", "total_flos", "train_loss")
_NO_CURVE_SUFFIXES = ("_runtime", "_per_second")
# Training fails if one of these is not finite; without this check it would go on and exit with 0.
_MUST_BE_FINITE = frozenset(
    {"loss", "grad_norm", "learning_rate", "reward", "kl", "min_reward", "mean_reward", "max_reward", "margin"}
)


class SaveCallback(TrainerCallback):  # type: ignore[misc]
    """Requests a checkpoint every `save_steps` steps, and at each evaluation with a lower loss than all before it.

    Comes before RecorderCallback, which logs before every save. The Trainer itself saves at the last step.
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
        """Save the best model so far; the Trainer updates `best_metric` after this call."""
        if state.best_metric is None or metrics[args.metric_for_best_model] < state.best_metric:
            control.should_save = True


logger = logging.getLogger(__name__)


class RecorderCallback(TrainerCallback):  # type: ignore[misc]
    """Sends curves and progress to the recorder, and stops training at the first number that is not finite.

    Training metrics keep their plain names (`loss`, `grad_norm`); evaluation metrics begin with `eval_`.

    Args:
        planned_steps: optimizer steps of the whole run.
        watch: tells what goes wrong with a policy; None for other models.
    """

    def __init__(self, recorder: Recorder, *, planned_steps: int, watch: AlarmWatch | None = None) -> None:
        self._watch = watch
        self.num_steps = 0
        self.last: dict[str, float] = {}
        self._recorder = recorder
        self._planned_steps = planned_steps
        self._told_at_s = -math.inf
        self._saved_step = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Report the first step."""
        self._saved_step = state.global_step
        self._recorder.progress(state.global_step, self._planned_steps, unit="steps")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Count the step, report progress at most once a second, and request a log line before a save."""
        self.num_steps += 1
        # Log before every save, so that a checkpoint is never written after a number that is not finite.
        control.should_log = control.should_log or control.should_save or control.should_evaluate
        now = time.monotonic()
        if now - self._told_at_s >= _PROGRESS_INTERVAL_S or state.global_step >= self._planned_steps:
            self._told_at_s = now
            # RLOO's loss is always near zero; its reward shows the progress.
            name = "reward" if "reward" in self.last else "loss"
            figure = f"{name} {self.last[name]:.4f}" if name in self.last else ""
            self._recorder.progress(state.global_step, self._planned_steps, unit="steps", text=figure)
            logger.info("%s", f"step {state.global_step} of {self._planned_steps} {figure}".rstrip())

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Remember the step, for the message if training diverges later."""
        self._saved_step = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Record the curves; raise DivergedError if one that must be finite is not."""
        curves = {
            name: float(value)
            for name, value in (logs or {}).items()
            if isinstance(value, int | float) and name not in _NO_CURVES and not name.endswith(_NO_CURVE_SUFFIXES)
        }
        if not curves:
            return
        self._recorder.metrics(state.global_step, curves)
        self.last |= curves
        for alarm in self._watch.new(curves) if self._watch is not None else ():
            self._recorder.note(f"Warning: step {state.global_step}: {alarm}")
        last = f"checkpoint-{self._saved_step} is the last one" if self._saved_step else "there is no checkpoint"
        for name, value in curves.items():
            if name.removeprefix("eval_") in _MUST_BE_FINITE and not math.isfinite(value):
                raise DivergedError(
                    f"{name} is {value} at step {state.global_step} of {self._planned_steps}. Nothing was saved from "
                    f"here on; {last}. Lower optimizer.learning_rate ({args.learning_rate:g}), or "
                    "look at that step's data."
                )


class StopCallback(TrainerCallback):  # type: ignore[misc]
    """After a stop request, saves at the next step from which a resume is exact, and raises StageCancelledError.

    Comes after RecorderCallback, which decides on logging, and CheckpointManifestCallback, which finishes the save.
    Records how often a stop is possible and how long a save took; the runtime derives from it how long to wait.
    """

    def __init__(self, stop: StopSignal, recorder: Recorder) -> None:
        self._stop = stop
        self._recorder = recorder
        self._stepped_at_s = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Record how often this training can stop."""
        self._recorder.stopping(stops_every=int(args.logging_steps))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Request a save if a resume from it gives the same training as without the stop."""
        self._stepped_at_s = time.monotonic()
        if not any_rank(self._stop.requested):
            return
        # The Trainer's sums since the last log line are in no checkpoint.
        if control.should_log:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End the training if a stop was requested; a checkpoint has just been finished.

        Raises:
            StageCancelledError: names the checkpoint.
        """
        # `any_rank` waits for all ranks, and so until the first rank has written the manifest.
        is_requested = any_rank(self._stop.requested)
        save_s = time.monotonic() - self._stepped_at_s
        self._recorder.stopping(stops_every=int(args.logging_steps), save_s=save_s)
        if not is_requested:
            return
        raise StageCancelledError(
            f"The stage was stopped (SIGTERM) after step {state.global_step}, which {CHECKPOINT_PREFIX}"
            f"{state.global_step} holds. Start it again and it goes on from there."
        )
