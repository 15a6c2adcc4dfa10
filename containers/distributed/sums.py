"""Sums over the packs of a step that stay where they are computed: a host that reads a GPU's number waits for it."""

from collections.abc import Iterable

import torch
from torch import Tensor


class DeviceSums:
    """Sums by name, in float64, so that they are those of the tensors' own numbers in the same order.

    Args:
        names: sums that are 0 if nothing is added to them.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._sums: dict[str, Tensor | float] = dict.fromkeys(names, 0.0)

    def add(self, name: str, value: Tensor | float) -> None:
        """Add a number, or the sum of a tensor's elements; does not wait for a device."""
        own = value.detach().sum().double() if isinstance(value, Tensor) else value
        self._sums[name] = self._sums.get(name, 0.0) + own

    def numbers(self) -> dict[str, float]:
        """Return the sums; waits once for the device."""
        tensors = {name: value for name, value in self._sums.items() if isinstance(value, Tensor)}
        read = dict(zip(tensors, torch.stack([*tensors.values()]).tolist() if tensors else (), strict=True))
        return {name: read[name] if isinstance(value, Tensor) else value for name, value in self._sums.items()}
