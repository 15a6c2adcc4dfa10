"""Rows of a batch that ask the same, and what was written behind them: for engines that write a prompt once."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def equal_rows(input_ids: Tensor, attention_mask: Tensor) -> list[range]:
    """Stretches of rows that are one prompt, in order."""
    changes = (input_ids[1:] != input_ids[:-1]).any(dim=1) | (attention_mask[1:] != attention_mask[:-1]).any(dim=1)
    borders = [0, *(changes.nonzero().flatten() + 1).tolist(), len(input_ids)]
    return [range(start, end) for start, end in pairwise(borders)]


def prompts_of(runs: Sequence[range], input_ids: Tensor, attention_mask: Tensor, *, siblings: int) -> list[list[int]]:
    """Token ids of every run's prompt without padding, once for each of so many of its rows."""
    return [input_ids[row][attention_mask[row].bool()].tolist() for run in runs for row in run[::siblings]]


def with_completions(input_ids: Tensor, completions: Sequence[Sequence[int]], *, pad_id: int) -> Tensor:
    """[B, L + C]: each row with what was written after it, filled up with the pad token."""
    tails = torch.full((len(input_ids), max(map(len, completions))), pad_id, device=input_ids.device)
    for row, tokens in enumerate(completions):
        tails[row, : len(tokens)] = torch.tensor(tokens, device=input_ids.device)
    return torch.cat([input_ids, tails], dim=1)
