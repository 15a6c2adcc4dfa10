"""The Trainer's callback that feeds the recorder and stops a training that has diverged."""

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.harness.errors import DivergedError
from containers.harness.recorder import Recorder

logger = logging.getLogger(__name__)

_PROGRESS_INTERVAL_S = 1.0
# Figures of the Trainer that are no curves: durations and throughput, and the summary at the end of training.
_NO_CURVES = ("epoch", "total_flos", "train_loss")
_NO_CURVE_SUFFIXES = ("_runtime", "_per_second")
# Where one of these is not finite, training is over; it goes on to exit 0 otherwise.
_MUST_BE_FINITE = frozenset(
    {"loss", "grad_norm", "learning_rate", "reward", "kl", "min_reward", "mean_reward", "max_reward", "margin"}
)


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
