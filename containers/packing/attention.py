"""Attention over trees of tokens in one row, so that a shared prefix is computed once.

A pair has one prompt and two completions. Here it is a tree: the trunk is the shared prefix of both conversations, and
each branch is the rest of one. A row holds several trees without padding. A token attends to its tree's trunk and to
its own branch up to itself; positions of each branch continue from the end of the trunk. All other layers compute each
token separately, so the results equal those of separate conversations, except for the last bits.

Registered with transformers as the attention implementation `packed_tree`; a forward gets the trees as `trees=…`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, use_gqa_in_sdpa

from containers.packing.kernel import attend_by_kernel, computed_dtype, is_found_right, try_kernel
from containers.packing.trees import Tree

NAME = "packed_tree"


def packed_tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    trees: Sequence[Tree],
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return [1, T, heads, width] from queries [1, heads, T, width], and keys and values [1, key heads, T, width].

    Uses one kernel for all trees if it passed its trial. Otherwise the trunk and its first branch are one causal
    attention, and each further branch is another one, over the trunk's keys and its own.
    """
    if not dropout and is_found_right(query, key):
        return attend_by_kernel(query, key, value, trees, scaling=scaling), None
    shares_keys = query.shape[1] != key.shape[1]

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        shared = shares_keys and shares_keys_fused(q, k, v, mask)
        if shares_keys and not shared:
            k, v = (repeat_kv(states, q.shape[1] // states.shape[1]) for states in (k, v))
        return scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, dropout_p=dropout, enable_gqa=shared
        )

    # Split, not sliced: the gradient of each slice would be a tensor of zeros as large as the row.
    lengths = [length for tree in trees for length in (tree.trunk + tree.branches[0], *tree.branches[1:])]
    split = zip(*(torch.split(whole, lengths, dim=2) for whole in (query, key, value)), strict=True)
    made: list[Tensor] = []
    for tree in trees:
        q, k, v = next(split)
        made.append(attend(q, k, v, None))
        trunk_k, trunk_v = k[:, :, : tree.trunk], v[:, :, : tree.trunk]
        for length in tree.branches[1:]:
            q, k, v = next(split)
            if not tree.trunk:
                made.append(attend(q, k, v, None))
                continue
            keys, values = torch.cat((trunk_k, k), dim=2), torch.cat((trunk_v, v), dim=2)
            made.append(attend(q, keys, values, _behind_trunk(tree.trunk, length, query.device)))
    return torch.cat(made, dim=2).transpose(1, 2).contiguous(), None


def shares_keys_fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether torch avoids a full matrix of attention weights if several heads share their keys.

    On GPUs only its flash kernel shares keys, and it supports neither masks nor float32. Without a kernel, 4,096 tokens
    after a trunk of as many take 12 GiB in each layer of 32 heads.
    """
    if query.device.type == "cpu":
        return True
    return use_gqa_in_sdpa(mask, key, value) and computed_dtype(query) != torch.float32


def _behind_trunk(trunk: int, branch: int, device: torch.device) -> Tensor:
    """Return a mask [branch, trunk + branch], true where a token of the branch attends to a key."""
    return torch.ones(branch, trunk + branch, dtype=torch.bool, device=device).tril(diagonal=trunk)


def _no_mask(*_: Any, **__: Any) -> None:
    """Build no mask: the trees replace it."""


AttentionInterface.register(NAME, packed_tree_attention)
AttentionMaskInterface.register(NAME, _no_mask)


@contextmanager
def packed(model: PreTrainedModel) -> Iterator[None]:
    """Use the attention `packed_tree` in the model while this is open."""
    try_kernel(model)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
