"""Layers that keep their activations, while the others compute theirs again in the backward pass."""

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer

from containers.contracts.configs.parts.training import Checkpointing, keeps_activations
from containers.harness.recorder import Recorder


def keep_some(model: torch.nn.Module, checkpointing: Checkpointing) -> tuple[int, int]:
    """Let every n-th layer keep its activations; return how many do, and the number of layers.

    Args:
        model: every layer computes its activations again.
        checkpointing: the number n.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    kept = [layer for place, layer in enumerate(layers) if keeps_activations(place, checkpointing)]
    for layer in kept:
        layer.gradient_checkpointing = False
    return len(kept), len(layers)


class KeptLayersCallback(TrainerCallback):  # type: ignore[misc]
    """Does so when training begins: only then the Trainer has switched every layer to computing again."""

    def __init__(self, checkpointing: Checkpointing, recorder: Recorder) -> None:
        self._checkpointing = checkpointing
        self._recorder = recorder

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, model: Any, **_: Any
    ) -> None:
        """Choose the layers, and note how many keep their activations."""
        kept, layers = keep_some(model, self._checkpointing)
        self._recorder.note(
            f"{kept} of {layers} layers keep their activations; the others compute them again in the backward pass."
        )
