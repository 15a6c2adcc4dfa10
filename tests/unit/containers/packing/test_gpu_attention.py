"""What packed attention asks of torch on a GPU, as far as a machine without one can tell."""

from typing import Any

import pytest
import torch
from torch import Tensor

from containers.packing import attention as packed_attention
from containers.packing.attention import packed_tree_attention, shares_keys_fused
from containers.packing.trees import Tree

pytestmark = pytest.mark.stages

TREES = (Tree(start=0, trunk=5, branches=(3, 4)), Tree(start=12, trunk=0, branches=(2, 6)))
TOKENS = TREES[-1].end


def attended() -> tuple[Tensor, Tensor]:
    """What 4 heads with 2 pairs of keys and values find, and the gradient of the keys."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, TOKENS, 8) for heads in (4, 2, 2))
    key.requires_grad_()
    found, _ = packed_tree_attention(torch.nn.Module(), query, key, value, None, trees=TREES)
    found.square().sum().backward()
    assert key.grad is not None
    return found.detach(), key.grad


def test_keys_that_are_repeated_for_each_head_give_what_shared_keys_give(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = attended()
    monkeypatch.setattr(packed_attention, "shares_keys_fused", lambda *_: False)
    for one, other in zip(attended(), shared, strict=True):
        torch.testing.assert_close(one, other)


class OnGpu:
    """A tensor as far as the rule looks at it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.device, self.dtype, self.shape = torch.device("cuda"), dtype, (1, 2, 8, 128)


@pytest.mark.parametrize(
    ("dtype", "has_mask", "shares"),
    [
        (torch.bfloat16, False, True),
        (torch.bfloat16, True, False),
        (torch.float32, False, False),
        (torch.float32, True, False),
    ],
)
def test_on_a_gpu_keys_are_shared_only_where_a_kernel_shares_them(
    dtype: torch.dtype, has_mask: bool, shares: bool
) -> None:
    states: Any = OnGpu(dtype)
    mask = torch.ones(8, 8, dtype=torch.bool) if has_mask else None
    assert shares_keys_fused(states, states, states, mask) is shares


def test_what_autocast_makes_of_float32_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
    states: Any = OnGpu(torch.float32)
    assert shares_keys_fused(states, states, states, None)
