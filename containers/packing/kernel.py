"""Attention of all trees of a row by one GPU kernel; a trial decides whether it is used.

The kernel is FlashAttention (torch's `varlen_attn`). Its segments may have different numbers of queries and keys, and
its causal mask is aligned at their ends: the last query of a segment sees its last key. So a trunk with its first
branch is one segment, and each further branch is another, with the trunk's keys and its own. SDPA per branch would need
a mask, which torch's flash kernel does not support, and a copy of the keys for each head that shares them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel
from trl.kernels import ChunkedLogProbFunction

from containers.distributed.devices import device_of
from containers.formatting import error_line
from containers.harness.errors import MissingPrerequisiteError
from containers.models.trial import trial
from containers.packing.trees import Tree

# The dtypes that the kernel computes in.
_DTYPES = (torch.bfloat16, torch.float16)
_CAUSAL = (-1, 0)
# A trunk and branches beyond one block of the kernel, a tree without a trunk, and a tree of single tokens.
_TRIED = (Tree(0, 150, (130, 33)), Tree(313, 0, (7,)), Tree(320, 1, (1, 1, 1)))
# Allowed error, in roundings of the largest value: numbers, weights and sums round. One surplus key gives far more.
_ALLOWED_ROUNDINGS = 16
_PARTS = ("outcome", "gradient of queries", "gradient of keys", "gradient of values")
_TOKENS, _WIDTH, _WORDS = 2, 16, 32


@dataclass(frozen=True)
class Shape:
    """The properties for which a kernel is compiled."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    key_heads: int
    width: int


_failures: dict[Shape, str] = {}


def attend_by_kernel(
    query: Tensor, key: Tensor, value: Tensor, trees: Sequence[Tree], *, scaling: float | None
) -> Tensor:
    """Return [1, T, heads, width] from queries [1, heads, T, width], and keys and values [1, key heads, T, width]."""
    dtype = computed_dtype(query)
    queries, keys, values = (states[0].transpose(0, 1).to(dtype) for states in (query, key, value))
    if any(tree.trunk and len(tree.branches) > 1 for tree in trees):
        keys, values = _with_trunks(keys, trees), _with_trunks(values, trees)
    of_queries, of_keys, most_queries, most_keys = _segments(tuple(trees), query.device)
    found = varlen_attn(
        queries,
        keys,
        values,
        of_queries,
        of_keys,
        most_queries,
        most_keys,
        scale=scaling,
        window_size=_CAUSAL,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return cast(Tensor, found)[None]


def try_kernel(model: PreTrainedModel) -> None:
    """Test, once for each shape, whether the kernel is right for the model's heads; does nothing on a CPU.

    Do not call it within a forward: gradient checkpointing must repeat the same operations, and the test runs once.

    Raises:
        RuntimeError: the GPU is full or broken.
    """
    for shape in _shapes_of(model):
        if shape not in _failures:
            _failures[shape] = failure_of(shape)


def kernel_text(model: PreTrainedModel) -> str:
    """Return a sentence for people about the kernel's trial; empty if there was none."""
    failures = [_failures[shape] for shape in _shapes_of(model) if shape in _failures]
    if not failures:
        return ""
    if failures[0]:
        return f"Attention is computed branch by branch, not by one kernel for all of them: {failures[0].rstrip('.')}."
    return "Attention is computed by one kernel for all of them."


def is_found_right(query: Tensor, key: Tensor) -> bool:
    """Whether the kernel passed its trial for such queries [1, heads, T, width] and keys."""
    if query.device.type == "cpu":
        return False
    shape = Shape(query.device, computed_dtype(query), query.shape[1], key.shape[1], query.shape[-1])
    return _failures.get(shape) == ""


def computed_dtype(states: Tensor) -> torch.dtype:
    """Return the dtype of the attention: autocast's if it is on, else that of the states."""
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype


def _shapes_of(model: PreTrainedModel) -> list[Shape]:
    """Return one shape per dtype; none without CUDA, or for models whose config has no number of heads."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    device = device_of(model)
    if device.type != "cuda" or not heads:
        return []
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    # Of a model that programs hold together, each has a share of the heads; some gather all of them.
    shares = {1, getattr(model, "_tp_size", None) or 1}
    return [Shape(device, dtype, heads // of, key_heads // of, width) for of in sorted(shares) for dtype in _DTYPES]


def _with_trunks(states: Tensor, trees: Sequence[Tree]) -> Tensor:
    """Return [keys, heads, width] from [T, heads, width]: the trunk is repeated before each of its branches."""
    # Split, not sliced: the gradient of each slice would be a tensor of zeros as large as the row.
    pieces = iter(torch.split(states, [length for tree in trees for length in (tree.trunk, *tree.branches)]))
    parts: list[Tensor] = []
    for tree in trees:
        trunk = next(pieces)
        for _ in tree.branches:
            parts += (trunk, next(pieces))
    return torch.cat(parts)


@lru_cache(maxsize=64)
def _segments(trees: tuple[Tree, ...], device: torch.device) -> tuple[Tensor, Tensor, int, int]:
    """Return ends of the segments of queries and of keys [N + 1], and the longest of each; equal in every layer."""
    queries = [length for tree in trees for length in (tree.trunk + tree.branches[0], *tree.branches[1:])]
    keys = [tree.trunk + branch for tree in trees for branch in tree.branches]
    ends = [
        torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32, device=device)
        for lengths in (queries, keys)
    ]
    return ends[0], ends[1], max(queries), max(keys)


def failure_of(shape: Shape) -> str:
    """Return what is wrong with the kernel for that shape, as a clause; empty if outcome and gradients are right."""
    # The trial leaves the model's random state and its autograd graph unchanged.
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(shape.device.type, enabled=False):
        made = _made_up(shape)
        exact = _with_gradients(_attend_exactly, [states.double().cpu() for states in made])
        with trial() as tried:
            found = _with_gradients(attend_by_kernel, [states.to(shape.device, shape.dtype) for states in made])
        if tried.failure:
            return f"it fails: {tried.failure}"
    rounding = _ALLOWED_ROUNDINGS * torch.finfo(shape.dtype).eps
    for name, one, other in zip(_PARTS, found, exact, strict=True):
        bound = rounding * float(other.abs().max())
        difference = float((one.double().cpu() - other).abs().max())
        if not difference <= bound:
            return f"its {name} is off by {difference:.2g}, more than {bound:.2g}"
    return ""


def _made_up(shape: Shape) -> list[Tensor]:
    """Return queries, keys and values for the trial, on the CPU, the same every time."""
    drawn = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, heads, _TRIED[-1].end, shape.width, generator=drawn).to(shape.dtype)
        for heads in (shape.heads, shape.key_heads, shape.key_heads)
    ]


def _with_gradients(attend: Callable[..., Tensor], states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the outcome, and the gradients of queries, keys and values."""
    leaves = [part.detach().requires_grad_() for part in states]
    outcome = attend(*leaves, _TRIED, scaling=None)
    weights = torch.linspace(-1, 1, outcome.numel(), device=outcome.device, dtype=outcome.dtype).view_as(outcome)
    return (outcome.detach(), *torch.autograd.grad(outcome, leaves, weights))


def _attend_exactly(
    query: Tensor, key: Tensor, value: Tensor, trees: Sequence[Tree], *, scaling: float | None
) -> Tensor:
    """Return what `attend_by_kernel` should, computed with an explicit mask."""
    seen = torch.zeros(query.shape[2], query.shape[2], dtype=torch.bool)
    for tree in trees:
        start = tree.start + tree.trunk
        for length in tree.branches:
            seen[start : start + length, tree.start : tree.start + tree.trunk] = True
            seen[start : start + length, start : start + length] = True
            start += length
        seen[tree.start : tree.start + tree.trunk, tree.start : tree.start + tree.trunk] = True
    found = scaled_dot_product_attention(
        query, key, value, attn_mask=seen.tril(), scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return found.transpose(1, 2)


def try_kernels(device: torch.device) -> None:
    """Compile TRL's kernels and run them once, before anything is loaded; takes seconds, and no time on a CPU.

    Raises:
        MissingPrerequisiteError: they cannot be compiled or run here, mostly because there is no C compiler.
    """
    hidden = torch.zeros(_TOKENS, _WIDTH, device=device, requires_grad=True)
    weight = torch.zeros(_WORDS, _WIDTH, device=device)
    targets = torch.zeros(_TOKENS, dtype=torch.long, device=device)
    try:
        logps, *_ = ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, _WORDS, None, 1.0, ("entropy",))
        logps.sum().backward()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton, the compiler and the driver raise many kinds of errors
        raise MissingPrerequisiteError(
            f"TRL's kernels cannot be compiled or run on {device}: {error_line(error)}. They need a C compiler (gcc) "
            "and Python's headers where the stage runs: build the stage image on an official PyTorch image, or install "
            "both."
        ) from error
