"""Attention of rows to a shared prompt, whose keys and values are kept once, and to their own tokens.

It has two parts: the queries of all siblings meet the prompt's keys together, and each row's query meets its own keys.
One softmax goes over both, so the result equals that of whole rows, except for the last bits.

Registered with transformers as the attention implementation `shared_prompt`, for rows with one query each.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop_out
from torch.nn.functional import softmax
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from containers.token_budgets import FIRST_ROOM_TOKENS

NAME = "shared_prompt"

_cache: ContextVar[Cache] = ContextVar("shared_prompt_cache")


class SharedPromptLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of a layer: each prompt's once, and each row's own tokens'.

    Attributes:
        prompt_keys: [P, key heads, N, width], padded after each prompt with masked places.
        prompt_values: as the keys.
        hidden: [P, 1, 1, N] minus infinity at the masked places, 0 at others.
        num_places: a row's tokens in the prompt's keys, including its padding.
    """

    is_sliding = False

    def __init__(self, prompt_keys: Tensor, prompt_values: Tensor, *, hidden: Tensor, num_places: int) -> None:
        super().__init__()
        self.prompt_keys, self.prompt_values, self.hidden = prompt_keys, prompt_values, hidden
        self.num_places = num_places
        self.is_initialized = True
        self._num_own = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate keys and values for the rows' own tokens."""
        rows, heads, _, _ = key_states.shape
        self.keys, self.values = (
            states.new_zeros(rows, heads, FIRST_ROOM_TOKENS, states.shape[-1]) for states in (key_states, value_states)
        )

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add these to each row's own keys and values; return all of them, [B, key heads, T, width] each."""
        if self.keys is None:
            self.lazy_initialization(key_states, value_states)
        start, end = self._num_own, self._num_own + key_states.shape[2]
        while end > self.keys.shape[2]:
            self.keys, self.values = (
                torch.cat((own, torch.zeros_like(own)), dim=2) for own in (self.keys, self.values)
            )
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self._num_own = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        """Number of a row's tokens so far, including padding."""
        return self.num_places + self._num_own

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and start of what the next tokens attend to."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1


def shared_prompt_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return [B, 1, heads, width]: one query per row attends to its prompt and its own tokens.

    Args:
        query: [B, heads, 1, width].
        key: [B, key heads, T, width], each row's own; the prompt's are in the layer's cache.
        value: as the keys.

    Raises:
        ValueError: a row has several queries.
    """
    layer = _cache.get().layers[module.layer_idx]
    rows, heads, num_queries, width = query.shape
    if num_queries != 1:
        raise ValueError(f"{NAME} takes one query per row; there are {num_queries}.")
    prompts, key_heads, places = layer.prompt_keys.shape[:3]
    siblings, sharing = rows // prompts, heads // key_heads
    scale = width**-0.5 if scaling is None else scaling
    own_queries = query.reshape(rows, key_heads, sharing, width) * scale

    def together(parts: Tensor) -> Tensor:
        """Reshape [B, key heads, sharing, …] to [P, key heads, siblings × sharing, …]."""
        by_row = parts.reshape(prompts, siblings, key_heads, sharing, -1)
        return by_row.transpose(1, 2).reshape(prompts, key_heads, siblings * sharing, -1)

    def apart(joined: Tensor) -> Tensor:
        """Undo `together`."""
        by_head = joined.reshape(prompts, key_heads, siblings, sharing, -1)
        return by_head.transpose(1, 2).reshape(rows, key_heads, sharing, -1)

    of_prompts = together(own_queries) @ layer.prompt_keys.transpose(2, 3) + layer.hidden
    of_own = own_queries @ key.transpose(2, 3)
    weights = softmax(torch.cat((apart(of_prompts), of_own), dim=-1), dim=-1, dtype=torch.float32).to(value.dtype)
    if dropout:
        weights = drop_out(weights, p=dropout)
    found = apart(together(weights[..., :places]) @ layer.prompt_values) + weights[..., places:] @ value
    return found.reshape(rows, 1, heads, -1), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Build no mask: the cache holds it."""


AttentionInterface.register(NAME, shared_prompt_attention)
AttentionMaskInterface.register(NAME, _no_mask)


@contextmanager
def attending_to(model: PreTrainedModel, cache: Cache) -> Iterator[None]:
    """Use the attention `shared_prompt` on this cache while this is open."""
    before = model.config._attn_implementation
    token = _cache.set(cache)
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        _cache.reset(token)
