"""The Trainer's callback that decides when a checkpoint is written: on schedule, and at each new best.

The Trainer takes the step with the lowest loss for the best, and the checkpoint of that step where there is one. Where
there is none, it would publish the weights of an older step under the figure of the newer one.
"""

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.contracts.schedule import ResolvedSchedule


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
