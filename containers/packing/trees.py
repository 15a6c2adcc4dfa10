"""Rows of trees of tokens: a trunk, the shared prefix of conversations, and a branch with the rest of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    """The place of one tree in its row: from `start`, the trunk, then the branches one after the other.

    Attributes:
        trunk: tokens of the trunk; 0: the branches share nothing.
        branches: tokens of each branch, at least one each.
    """

    start: int
    trunk: int
    branches: tuple[int, ...]

    @property
    def end(self) -> int:
        """First place after the tree."""
        return self.start + self.trunk + sum(self.branches)

    @property
    def lasts(self) -> tuple[int, ...]:
        """Place in the row of each branch's last token, whose score is the conversation's."""
        places, place = [], self.start + self.trunk
        for branch in self.branches:
            place += branch
            places.append(place - 1)
        return tuple(places)


@dataclass(frozen=True)
class PackedRow:
    """One row of trees, without padding.

    Attributes:
        input_ids: [1, T].
        position_ids: [1, T].
    """

    input_ids: Tensor
    position_ids: Tensor
    trees: tuple[Tree, ...]

    def given(self, device: torch.device) -> dict[str, Any]:
        """Return the arguments of a model's forward on that device; it must use the attention `packed_tree`."""
        ids, positions = self.input_ids.to(device), self.position_ids.to(device)
        return {"input_ids": ids, "position_ids": positions, "use_cache": False, "trees": self.trees}


def common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """Length of the shared prefix of all sequences; at least one token of each is left for its branch."""
    first, *others = sequences
    limit = min(len(sequence) for sequence in sequences) - 1
    for other in others:
        for place in range(limit):
            if first[place] != other[place]:
                limit = place
                break
    return max(limit, 0)


def lay_out(groups: Sequence[Sequence[Sequence[int]]]) -> PackedRow:
    """Lay out one row of groups of conversations that may share a prefix, with a tree for each group.

    Args:
        groups: per group the token ids of each conversation, none empty.
    """
    tokens: list[int] = []
    positions: list[int] = []
    trees: list[Tree] = []
    for sequences in groups:
        trunk = common_prefix(sequences)
        branches = tuple(len(sequence) - trunk for sequence in sequences)
        trees.append(Tree(start=len(tokens), trunk=trunk, branches=branches))
        tokens += sequences[0][:trunk]
        positions += range(trunk)
        for sequence in sequences:
            tokens += sequence[trunk:]
            positions += range(trunk, len(sequence))
    return PackedRow(torch.tensor([tokens]), torch.tensor([positions]), tuple(trees))
