"""Copies of a model that were saved and loaded again, and weights moved at random so that other copies show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from containers.harness.errors import StageError

# Weights that begin as zero (those of adapters) are moved by so much, and others by ten times as much of their root
# mean square; then by twice that, and so on.
_FIRST_MOVE, _OF_OTHERS, _TRIES = 0.01, 10.0, 16

Values = list[float]


@dataclass(frozen=True)
class SavedCopy:
    """A copy that was loaded from disk and compared with the model that was saved.

    Attributes:
        name: its folder.
        values: what it computes.
        difference: from what the saved model computed.
        allowed: the largest difference that rounding explains.
    """

    name: str
    values: Values
    difference: float
    allowed: float


@dataclass(frozen=True)
class TriedCopies:
    """The copies of a model whose trained weights were moved.

    Attributes:
        moved: by how much that changed what the model computes.
        unit: of `moved` and of the copies' differences, for example `nats a token`.
    """

    moved: float
    unit: str
    copies: tuple[SavedCopy, ...]


def largest_gap(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest difference of two values at the same place."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@torch.no_grad()
def move_trained_weights(
    model: torch.nn.Module,
    computed: Callable[[], Values],
    *,
    gap: Callable[[Values, Values], float],
    least: Callable[[Values], float],
) -> tuple[Values, float]:
    """Move the model's trained weights at random, and return what it then computes, and the gap to before.

    A new model has adapters without effect: it would equal any copy, also one that lost them.

    Args:
        computed: returns what the model computes now.
        gap: how far two such results are apart.
        least: returns, for a result, how far it must be from the first one.

    Raises:
        StageError: however far weights are moved, the results stay nearly the same, or are not finite.
    """
    before, size, moved = computed(), _FIRST_MOVE, 0.0
    for seed in range(_TRIES):
        _add_noise(model, size=size, seed=seed)
        now = computed()
        moved = gap(before, now)
        if moved >= least(now):
            return now, moved
        size *= 2
    raise StageError(
        f"The weights that this training changes have nearly no effect: moved at random, up to {size / 2:g}, they "
        f"change what the model computes by {moved:.2g}. Train other layers (lora.targets, trainable), or start from "
        "another model."
    )


def _add_noise(model: torch.nn.Module, *, size: float, seed: int) -> None:
    generators: dict[torch.device, torch.Generator] = {}
    for weight in model.parameters():
        if weight.requires_grad:
            generator = generators.setdefault(weight.device, torch.Generator(weight.device).manual_seed(seed))
            own = float(weight.float().square().mean().sqrt())
            noise = torch.randn(weight.shape, generator=generator, device=weight.device, dtype=weight.dtype)
            weight.add_(noise, alpha=size * (_OF_OTHERS * own if own else 1.0))
