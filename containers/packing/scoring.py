"""Scores of conversations packed in rows: a shared prefix is computed once, and there is no padding."""

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
    """Group the sequences (by place) so that computing shared prefixes once saves the most tokens.

    In sorted order, the prefix of a group is the shortest that two neighbours in it share. So the best groups are
    stretches of that order: dynamic programming from left to right finds the best stretch that ends at each place.

    Args:
        max_items: maximum members of a group.
        max_tokens: maximum tokens of a group; two answers to a longer prompt may still be one group.
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
    sequences: Sequence[Sequence[int]], groups: Sequence[list[int]], *, max_items: int, max_tokens: int
) -> list[list[list[int]]]:
    """Fill rows with groups, longest first, up to `max_items` members and `max_tokens`; a longer group is alone."""
    lengths = [computed_tokens([sequences[place] for place in group]) for group in groups]
    rows: list[list[list[int]]] = []
    room: list[tuple[int, int]] = []
    for number in sorted(range(len(groups)), key=lambda number: lengths[number], reverse=True):
        group, length = groups[number], lengths[number]
        fitting = (row for row, (tokens, items) in enumerate(room) if length <= tokens and len(group) <= items)
        row = next(fitting, len(rows))
        if row == len(rows):
            rows.append([])
            room.append((max_tokens, max_items))
        rows[row].append(group)
        room[row] = (room[row][0] - length, room[row][1] - len(group))
    return rows


def computed_tokens(members: Sequence[Sequence[int]]) -> int:
    """Number of tokens computed for a group: its shared prefix counts once."""
    return sum(len(tokens) for tokens in members) - common_prefix(members) * (len(members) - 1)


def why_padded(classifier: PreTrainedModel, *, max_length: int) -> str:
    """Return why this model's conversations cannot be packed, judged by its configuration; empty if they can."""
    if not getattr(classifier, "_supports_attention_backend", False):
        return f"the attention of {type(classifier).__name__} is its own, not transformers' attention interface"
    return packing_traits(classifier.config.get_text_config().to_dict()).attention_hindrance(longest=max_length)


@torch.no_grad()
def score_rows(classifier: PreTrainedModel, head: Tensor, rows: Sequence[Sequence[Sequence[list[int]]]]) -> list[float]:
    """Return one score per conversation, in the order of rows, groups and members.

    Args:
        head: [1, hidden] weight of the score head; applied in float32.
        rows: per row its groups, per group the token ids of its members.
    """
    trunk: Any = getattr(classifier, classifier.base_model_prefix)
    weight, scores = head.float(), []
    with packed(classifier):
        for groups in rows:
            row = lay_out(groups)
            hidden: Tensor = trunk(**row.given(classifier.device)).last_hidden_state
            lasts = [last for tree in row.trees for last in tree.lasts]
            scores += (hidden[0, lasts].float() @ weight.T).squeeze(-1).tolist()
    return scores
