"""Scores of conversations packed in rows: a beginning that several share is computed once, and nothing is padding."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from containers.packing.attention import packed
from containers.packing.trees import common_prefix, lay_out
from containers.packing_traits import packing_traits


def shared_groups(sequences: Sequence[list[int]], *, max_items: int, max_tokens: int) -> list[list[int]]:
    """Places of the sequences in the groups that save the most tokens by computing what their members share once.

    In sorted order, what a group shares is the least that two neighbours in it share, so the best groups are stretches
    of that order: found from left to right, each place asking for the best stretch that ends there.

    Args:
        max_items: members of a group, at most.
        max_tokens: tokens of a group, at most; two answers to a longer prompt may still be one.
    """
    order = sorted(range(len(sequences)), key=lambda place: sequences[place])
    shared = [0, *(common_prefix((sequences[one], sequences[other])) for one, other in pairwise(order))]
    saved, starts = [0], [0]
    for end in range(1, len(order) + 1):
        best, best_start = saved[end - 1], end - 1
        trunk, tokens = len(sequences[order[end - 1]]), 0
        for start in range(end - 1, max(end - max_items, 0) - 1, -1):
            tokens += len(sequences[order[start]])
            members = end - start
            if members > 1:
                trunk = min(trunk, shared[start + 1])
                if trunk == 0:
                    break
                if members > 2 and tokens - trunk * (members - 1) > max_tokens:
                    break
                if saved[start] + trunk * (members - 1) > best:
                    best, best_start = saved[start] + trunk * (members - 1), start
        saved.append(best)
        starts.append(best_start)
    groups: list[list[int]] = []
    end = len(order)
    while end:
        groups.append(order[starts[end] : end])
        end = starts[end]
    return groups


def packed_rows(
    sequences: Sequence[list[int]], groups: Sequence[list[int]], *, max_items: int, max_tokens: int
) -> list[list[list[int]]]:
    """The groups in rows of at most so many conversations and tokens, the longest first; a longer group is alone."""
    lengths = [computed_tokens([sequences[place] for place in group]) for group in groups]
    rows: list[list[int]] = []
    for number in sorted(range(len(groups)), key=lambda number: lengths[number], reverse=True):
        fitting = (
            row
            for row in rows
            if sum(lengths[member] for member in row) + lengths[number] <= max_tokens
            and sum(len(groups[member]) for member in row) + len(groups[number]) <= max_items
        )
        row = next(fitting, None)
        if row is None:
            rows.append([number])
        else:
            row.append(number)
    return [[groups[number] for number in row] for row in rows]


def computed_tokens(members: Sequence[list[int]]) -> int:
    """Tokens that a group is computed by: what all members begin with counts once."""
    return sum(len(tokens) for tokens in members) - common_prefix(members) * (len(members) - 1)


def why_padded(classifier: PreTrainedModel, *, max_length: int) -> str:
    """Why this model's conversations cannot be packed, as far as its configuration tells; empty where they can."""
    if not getattr(classifier, "_supports_attention_backend", False):
        return f"the attention of {type(classifier).__name__} is its own, not transformers' attention interface"
    return packing_traits(classifier.config.get_text_config().to_dict()).attention_hindrance(longest=max_length)


@torch.no_grad()
def score_rows(classifier: PreTrainedModel, head: Tensor, rows: Sequence[Sequence[Sequence[list[int]]]]) -> list[float]:
    """One score per conversation, in the order of rows, groups and members.

    Args:
        head: [1, hidden] weight of the score head; applied in float32.
        rows: per row its groups, per group the token ids of its members.
    """
    trunk: Any = getattr(classifier, classifier.base_model_prefix)
    weight, scores = head.float(), []
    with packed(classifier):
        for groups in rows:
            tokens, positions, trees = lay_out(groups)
            hidden: Tensor = trunk(
                input_ids=torch.tensor([tokens], device=classifier.device),
                position_ids=torch.tensor([positions], device=classifier.device),
                use_cache=False,
                trees=trees,
            ).last_hidden_state
            lasts = [last for tree in trees for last in tree.lasts]
            scores += (hidden[0, lasts].float() @ weight.T).squeeze(-1).tolist()
    return scores
