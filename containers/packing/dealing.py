"""Deal the examples of a step to ranks so that all have about as many tokens: each step waits for the slowest rank.

The examples of the step stay the same, and so do its loss and gradients, up to the order of sums.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch


def dealt(sizes: Sequence[int], *, num_ranks: int, counts: Sequence[int] | None = None) -> list[int] | None:
    """Return the places of items, ordered so that `num_ranks` parts with equally many examples have like sums.

    The largest come first; each goes to the rank that has the least so far, of those with room. A part keeps the order
    of its items. Source: the longest-processing-time rule of Graham 1969, with a number of examples for each rank.

    Args:
        sizes: tokens of each item.
        counts: examples of each item, which stay together; None: one each.

    Returns:
        None where the items cannot be divided into such parts without being split.
    """
    held = [1] * len(sizes) if counts is None else list(counts)
    if sum(held) % num_ranks:
        return None
    parts: list[list[int]] = [[] for _ in range(num_ranks)]
    tokens, room = [0] * num_ranks, [sum(held) // num_ranks] * num_ranks
    for place in sorted(range(len(sizes)), key=lambda place: sizes[place], reverse=True):
        fitting = [rank for rank in range(num_ranks) if room[rank] >= held[place]]
        if not fitting:
            return None
        rank = min(fitting, key=lambda rank: tokens[rank])
        parts[rank].append(place)
        tokens[rank] += sizes[place]
        room[rank] -= held[place]
    return [place for part in parts for place in sorted(part)]


class DealtOrder(torch.utils.data.Sampler[int]):
    """The random order of an epoch that the Trainer would have, each step's examples dealt to the ranks.

    Args:
        sizes: tokens of each example.
        per_step: examples of a step, over all ranks, which one batch for each rank holds.
        seed: of the order of each epoch, as of accelerate's seeded sampler.
        epoch: returns the current epoch, counted from 0. accelerate tells a sampler its epoch, but not behind the two
            wrappers that it has after a resume on several ranks.
    """

    def __init__(
        self, sizes: Sequence[int], *, per_step: int, num_ranks: int, seed: int, epoch: Callable[[], int]
    ) -> None:
        self._sizes = sizes
        self._per_step = per_step
        self._num_ranks = num_ranks
        self._seed = seed
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed + self._epoch())
        order: list[int] = torch.randperm(len(self._sizes), generator=generator).tolist()
        steps = (order[start : start + self._per_step] for start in range(0, len(order), self._per_step))
        return chain.from_iterable(self._dealt(step) for step in steps)

    def _dealt(self, places: list[int]) -> list[int]:
        if len(places) < self._per_step:
            return places
        found = dealt([self._sizes[place] for place in places], num_ranks=self._num_ranks)
        return places if found is None else [places[place] for place in found]


def dealt_families(
    families: Sequence[Sequence[int]], size_of: Callable[[Sequence[int]], int], *, num_ranks: int
) -> list[int]:
    """Return the examples of a step, dealt to the ranks; families stay together where that leaves ranks equally many.

    Args:
        families: places of the examples that share a prompt.
        size_of: tokens of some examples of one family.
    """
    singles = [[place] for family in families for place in family]
    for groups in (families, singles):
        found = dealt([size_of(group) for group in groups], num_ranks=num_ranks, counts=[*map(len, groups)])
        if found is not None:
            return [place for group in found for place in groups[group]]
    return [place for family in families for place in family]


def ranks_of(arguments: Any) -> int:
    """Return how many ranks the arguments of a Trainer are for, if each computes its part of a step in one batch."""
    return int(arguments.world_size) if arguments.gradient_accumulation_steps == 1 else 1
