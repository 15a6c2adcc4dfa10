"""A GPU that is pretended, on a machine without one: what computes on two devices at once fails as on a real one.

A tensor on it says `cuda:0` and holds its numbers on the CPU. Every operation of torch is looked at: a tensor of the
CPU may go into one with tensors of the GPU where torch lets it (a number, an index, a copy), and nowhere else. Kernels,
their types, speed and memory are the CPU's: nothing is said about these.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import containers

GPU = torch.device("cuda", 0)
_CPU = torch.device("cpu")
aten = torch.ops.aten
_COPIES = {aten.copy_.default, aten._to_copy.default}
_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# The host waits for a GPU in these, which give it a number or need one to know how large their outcome is.
_WAITING = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
    aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default,
}  # fmt: skip
_open_notes: list[list[str]] = []
_PRODUCT = f"{Path(containers.__file__).parent}/"
# Whether torch itself makes tensors for an operation on the GPU, which then lie there.
_within = [False]


class MixedDevicesError(AssertionError):
    """What a GPU refuses."""


class OnGpu(torch.Tensor):
    """A tensor on the pretended GPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnGpu":
        made: OnGpu = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype
        )
        made.held = held
        return made

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def tolist(self) -> Any:
        _note_wait("tolist")
        return self.held.detach().tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Move(torch.autograd.Function):
    """To the other device, and the gradient back."""

    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        return given.held.detach().clone() if isinstance(given, OnGpu) else OnGpu(given.detach().clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.held if isinstance(gradient, OnGpu) else OnGpu(gradient)


def on_gpu(given: Tensor) -> Tensor:
    """The tensor, on the pretended GPU."""
    moved: Any = _Move.apply
    if isinstance(given, OnGpu):
        return given
    return moved(given) if given.requires_grad else OnGpu(given.detach())


def on_cpu(given: Tensor) -> Tensor:
    """The tensor, on the CPU."""
    moved: Any = _Move.apply
    if not isinstance(given, OnGpu):
        return given
    _note_wait("copy")
    return moved(given) if given.requires_grad else given.held.detach().clone()


def move_to_gpu(model: torch.nn.Module) -> torch.nn.Module:
    """The model itself, all that it holds on the pretended GPU; what is shared stays shared."""
    moved: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                held = OnGpu(weight.detach().clone())
                module._parameters[name] = moved.setdefault(
                    id(weight), torch.nn.Parameter(held, requires_grad=weight.requires_grad)
                )
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = OnGpu(buffer.detach().clone())
    return model


@contextmanager
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While this is open, what names `cuda` gets tensors on the pretended GPU."""
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    with _Operations(), _Functions():
        yield


@contextmanager
def host_waits() -> Iterator[list[str]]:
    """Note while this is open each time that the host waits for the pretended GPU: `tolist in losses/ratios.py`."""
    _open_notes.append([])
    try:
        yield _open_notes[-1]
    finally:
        _open_notes.pop()


def _note_wait(operation: str) -> None:
    if not _open_notes:
        return
    frame: Any = sys._getframe(1)
    while frame and not frame.f_code.co_filename.startswith(_PRODUCT):
        frame = frame.f_back
    place = frame.f_code.co_filename.removeprefix(_PRODUCT) if frame else "a library"
    _open_notes[-1].append(f"{operation} in {place}, {frame.f_code.co_name if frame else ''}")


def _makes_host_wait(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the GPU must answer before the host goes on."""
    if func in _WAITING:
        return True
    if func is aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is None
    if func in _COPIES:
        if func is aten.copy_.default:
            return isinstance(args[1], OnGpu) and not isinstance(args[0], OnGpu)
        return isinstance(args[0], OnGpu) and kwargs.get("device") is not None and not _is_gpu(kwargs["device"])
    masks = (index for index in (args[1] if func in _INDEXED else ()) if index is not None)
    return any(isinstance(index, OnGpu) and index.dtype == torch.bool for index in masks)


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _demand_one_device(func: Any, args: Any, tensors: list[Tensor]) -> None:
    strangers = [tensor for tensor in tensors if not isinstance(tensor, OnGpu)]
    if len(strangers) in (0, len(tensors)) or func in _COPIES:
        return
    if func in _INDEXED and isinstance(args[0], OnGpu):
        # Indices may lie on the CPU.
        strangers = [tensor for tensor in args[2:3] if not isinstance(tensor, OnGpu)]
    if any(tensor.dim() for tensor in strangers) or (func in _INDEXED and not isinstance(args[0], OnGpu)):
        shapes = [(tuple(tensor.shape), tensor.device.type) for tensor in tensors]
        raise MixedDevicesError(f"{func} was given tensors of two devices: {shapes}")


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation on the CPU, its outcome on the device where it belongs."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    _demand_one_device(func, args, tensors)
    goes_to_gpu = any(isinstance(tensor, OnGpu) for tensor in tensors)
    if func is aten.copy_.default:
        goes_to_gpu = isinstance(args[0], OnGpu)
    if kwargs.get("device") is not None:
        goes_to_gpu = _is_gpu(kwargs["device"]) or (_within[-1] and func is not aten._to_copy.default)
        kwargs = {**kwargs, "device": _CPU}
    if any(isinstance(tensor, OnGpu) for tensor in tensors) and _makes_host_wait(func, args, kwargs):
        _note_wait(func.name().removeprefix("aten::"))
    held_args, held_kwargs = tree_map(lambda leaf: leaf.held if isinstance(leaf, OnGpu) else leaf, (args, kwargs))
    found = func(*held_args, **held_kwargs)
    if not goes_to_gpu:
        return found
    if "out" in kwargs:
        return kwargs["out"]
    if func._schema.is_mutable and func._schema.name.endswith("_"):
        return args[0]
    return tree_map(lambda leaf: OnGpu(leaf) if isinstance(leaf, Tensor) else leaf, found)


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Sees what the program asks for, before torch takes it apart."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        first = args[0] if args else None
        if name == "to" or name == "cpu":
            return self._moved(func, name, args, kwargs)
        if name in ("__getitem__", "__setitem__") and isinstance(first, OnGpu):
            args = (first, tree_map(lambda leaf: leaf, _listed(args[1])), *args[2:])
        if name == "scaled_dot_product_attention" and isinstance(first, OnGpu):
            return _attention(*args, **kwargs)
        if _is_gpu(kwargs.get("device")) and not any(isinstance(leaf, OnGpu) for leaf in tree_leaves((args, kwargs))):
            return on_gpu(func(*args, **{**kwargs, "device": _CPU}))
        if _is_gpu(kwargs.get("device")):
            kwargs.pop("device")
        touches = any(isinstance(leaf, OnGpu) for leaf in tree_leaves((args, kwargs)))
        with _making(kwargs.get("device") is None and (touches or name == "backward")):
            if name == "backward":
                return _backward(first)
            return func(*args, **kwargs)

    def _moved(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """`to` and `cpu`: the type changes on the device where the tensor lies."""
        given, rest = args[0], list(args[1:])
        wanted = _CPU if name == "cpu" else kwargs.pop("device", None)
        if wanted is None and rest and isinstance(rest[0], str | torch.device):
            wanted = rest.pop(0)
        if wanted is not None:
            given = on_gpu(given) if _is_gpu(wanted) else on_cpu(given)
        return func(given, *rest, **kwargs) if name == "to" and (rest or kwargs) else given


@contextmanager
def _making(on_gpu_too: bool) -> Iterator[None]:
    _within.append(on_gpu_too)
    try:
        yield
    finally:
        _within.pop()


def _listed(index: Any) -> Any:
    """A list in an index becomes a tensor, as torch makes it by itself."""
    if isinstance(index, tuple):
        return tuple(map(_listed, index))
    return on_gpu(torch.tensor(index)) if isinstance(index, list) else index


def _backward(given: Any) -> Any:
    """With the mode open: what is checkpointed is computed again within."""
    loss = given if isinstance(given, Tensor) else given[0]
    one: Tensor = OnGpu(torch.ones_like(loss.held)) if isinstance(loss, OnGpu) else torch.ones_like(loss)
    engine: Any = torch.autograd.Variable._execution_engine
    with _Functions():
        return engine.run_backward((loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Scaled dot products: torch's own choice of a kernel would look for one of the GPU."""
    strangers = [given for given in (key, value, attn_mask) if given is not None and not isinstance(given, OnGpu)]
    if strangers:
        raise MixedDevicesError("attention was given tensors of two devices")
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros(attn_mask.shape, dtype=query.dtype, device=GPU).masked_fill(~attn_mask, -torch.inf)
    with _making(True):
        found: Tensor = aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    return found
