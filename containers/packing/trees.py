"""Rows of trees of tokens: a trunk, the shared prefix of conversations, and a branch with the rest of each."""

from collections.abc import Sequence
from dataclasses import dataclass


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


def lay_out(groups: Sequence[Sequence[Sequence[int]]]) -> tuple[list[int], list[int], tuple[Tree, ...]]:
    """Lay out one row of groups of conversations that may share a prefix.

    Args:
        groups: per group the token ids of each conversation, none empty.

    Returns:
        tokens of the row, their positions, and the tree of each group.
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
    return tokens, positions, tuple(trees)
