"""Frozen models whose weights lie in host memory, and are on their device only while they are used."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

_HANDLE = "_offloaded"


class Offloaded:
    """The weights of a frozen model in host memory; page-locked where the device is a GPU, so that copies are fast."""

    def __init__(self, model: nn.Module) -> None:
        parameters = dict.fromkeys(model.parameters())
        self._device = next(iter(parameters)).device
        locked = self._device.type == "cuda"
        self._host = {
            weight: weight.data.to("cpu", copy=True).pin_memory() if locked else weight.data.to("cpu", copy=True)
            for weight in parameters
        }
        self._users = 0
        for weight, held in self._host.items():
            setattr(weight, _HANDLE, self)
            weight.data = held

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(held.numel() * held.element_size() for held in self._host.values())

    @contextmanager
    def present(self) -> Iterator[None]:
        """The weights are on their device while this is open; it may be opened more than once at a time."""
        self._users += 1
        try:
            if self._users == 1:
                for weight, held in self._host.items():
                    weight.data = held.to(self._device, non_blocking=True, copy=True)
            yield
        finally:
            self._users -= 1
            if not self._users:
                for weight, held in self._host.items():
                    weight.data = held


def offload(model: nn.Module) -> int:
    """Move a frozen model's weights to host memory, and return their bytes; `present` brings them back for a while.

    Whatever shares its parameters is offloaded with it.

    Raises:
        ValueError: a weight is trained.
    """
    if any(weight.requires_grad for weight in model.parameters()):
        raise ValueError("A model that is trained cannot be offloaded.")
    return Offloaded(model).num_bytes


@contextmanager
def present(model: Any) -> Iterator[None]:
    """Have all weights of a model on its device while this is open; does nothing for one that is not offloaded."""
    handles = {handle for weight in model.parameters() if (handle := getattr(weight, _HANDLE, None)) is not None}
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle.present())
        yield
