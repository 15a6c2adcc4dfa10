"""Frozen models whose weights lie in host memory, and are on their device only while they are used."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from containers.models.tensor_parallel import shell

_HANDLE = "_offloaded"
# Of a GPU's free memory: the most that a model may take to lie there whole, and what it takes if it does not.
_WHOLE, _PART = 0.8, 0.6


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


def spilling_arguments(auto_class: Any, folder: Path, device: torch.device | str) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for a model for which its GPU has no room; empty if it has, or is none.

    The last layers then stay in host memory, and accelerate copies each to the GPU while it computes.

    Args:
        folder: weights in the type in which they are loaded.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return {}
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    needed = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if needed <= _WHOLE * free:
        return {}
    index = torch.cuda.current_device() if device.index is None else device.index
    return {"device_map": places(auto_class, folder, here=index, elsewhere="cpu", share=_PART * free / needed)}


def places(auto_class: Any, folder: Path, *, here: int | str, elsewhere: str, share: float) -> dict[str, int | str]:
    """Return the place of each part of a model, as accelerate takes them: a share of the layers and all others here."""
    model = shell(auto_class, folder, dtype=torch.float32)
    number = model.config.get_text_config().num_hidden_layers
    name = next(n for n, one in model.named_modules() if isinstance(one, nn.ModuleList) and len(one) == number)
    found: dict[str, int | str] = {}
    path, part = "", model
    for step in name.split("."):
        found |= {f"{path}{child}": here for child, _ in part.named_children() if child != step}
        path, part = f"{path}{step}.", part.get_submodule(step)
    return found | {f"{path}{layer}": here if layer < int(share * number) else elsewhere for layer in range(number)}


def is_spilled(model: nn.Module) -> bool:
    """Whether accelerate holds a part of the model elsewhere."""
    return any(weight.is_meta for weight in model.parameters())


def held_weight(layer: nn.Module) -> torch.Tensor:
    """Return a layer's weight where it is held: in host memory, if accelerate copies it to the GPU to compute."""
    part: Any = layer
    if not part.weight.is_meta:
        weight: torch.Tensor = part.weight
        return weight
    hooks = getattr(part._hf_hook, "hooks", [part._hf_hook])
    held: torch.Tensor = next(one.weights_map for one in hooks if one.weights_map is not None)["weight"]
    return held
