"""Try the largest pack of the data early: a memory that is too small ends a training in its first minute, not late."""

from typing import Any, Protocol, runtime_checkable

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.formatting import size
from containers.harness.recorder import Recorder
from containers.training.records import peak_memory_bytes


@runtime_checkable
class KnowsLargest(Protocol):
    """A trainer that knows the largest pack that a step of a rank can have."""

    def add_callback(self, callback: Any) -> None:
        """Call it from now on, as transformers' Trainer does."""
        ...

    def compute_largest(self) -> int:
        """Compute forward and backward of that pack, on every rank the same, and return its tokens."""
        ...


class LargestPackCallback(TrainerCallback):  # type: ignore[misc]
    """Computes the largest pack once, after the first step of an attempt: only then the optimizer has its memory.

    Gradients are dropped and random states restored, so training is the same as without.
    """

    def __init__(self, trainer: KnowsLargest, recorder: Recorder) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._is_done = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """Compute it after the first step."""
        if self._is_done:
            return
        self._is_done = True
        devices = [args.device] if args.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            tokens = self._trainer.compute_largest()
        model.zero_grad()
        self._recorder.note(
            f"The largest possible pack, {tokens:,} tokens, was computed after the first step of this attempt, to "
            f"see that it fits: {size(peak_memory_bytes())} at most so far."
        )
