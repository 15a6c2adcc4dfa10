"""Log-probabilities of completions from packed rows: a prompt is computed once for all of its completions.

Only the tokens that predict one of a completion go through the head, tile by tile, so there are never logits of all
tokens over the whole vocabulary: by the function that TRL's own trainers use, and, where the head is not trained and
there is no GPU, by one that computes no logits twice.
"""

import functools
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel
from trl.kernels import ChunkedLogProbFunction

from containers.packing.scoring import packed_rows
from containers.packing.trees import Tree, lay_out
from containers.token_budgets import frozen_head_tile_tokens, head_tile_words


@dataclass(frozen=True)
class CompletionPack:
    """One row of prompts with their completions; nothing of it is padding.

    Attributes:
        input_ids: [1, T].
        position_ids: [1, T].
        rows: place in the batch of each of its completions.
        lengths: tokens of each of these completions.
        places: [N] place in the row of the token that predicts, completion by completion.
        targets: [N] the token that it predicts.
    """

    input_ids: Tensor
    position_ids: Tensor
    trees: tuple[Tree, ...]
    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    places: Tensor
    targets: Tensor

    def by_completion(self, values: Tensor) -> tuple[Tensor, ...]:
        """Values of the N predicted tokens, apart for each completion."""
        return torch.split(values, list(self.lengths))


def completion_packs(
    prompts: Sequence[list[int]], completions: Sequence[list[int]], *, max_tokens: int
) -> list[CompletionPack]:
    """Packs of completions whose prompts are alike, the longest first.

    None is above the budget but a prompt with one completion that is longer by itself; completions of one prompt that
    are longer together lie in several packs.

    Args:
        prompts: token ids of each completion's prompt, none empty.
        completions: token ids, none empty.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(prompts):
        alike.setdefault(tuple(prompt), []).append(row)
    groups = [
        piece
        for prompt, rows in alike.items()
        for piece in _pieces(rows, [len(completions[row]) for row in rows], room=max_tokens - len(prompt))
    ]
    sequences = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    packs = packed_rows(sequences, groups, max_items=len(sequences), max_tokens=max_tokens)
    starts = [len(prompt) for prompt in prompts]
    return [_pack(sequences, starts, members) for members in packs]


def _pieces(rows: Sequence[int], lengths: Sequence[int], *, room: int) -> list[list[int]]:
    """The rows in order, cut where the next completion would not fit."""
    pieces: list[list[int]] = []
    free = 0
    for row, length in zip(rows, lengths, strict=True):
        if length > free:
            pieces.append([])
            free = room
        pieces[-1].append(row)
        free -= length
    return pieces


def _pack(sequences: Sequence[list[int]], starts: Sequence[int], groups: Sequence[Sequence[int]]) -> CompletionPack:
    """One row of these groups; `starts` says where in each sequence its completion begins."""
    tokens, positions, trees = lay_out([[sequences[row] for row in group] for group in groups])
    rows, places, targets = [row for group in groups for row in group], [], []
    for group, tree in zip(groups, trees, strict=True):
        branch = tree.start + tree.trunk
        for row, length in zip(group, tree.branches, strict=True):
            # What predicts stands in the trunk or in the branch; the last token of the sequence predicts nothing.
            predicting = range(starts[row] - 1, len(sequences[row]) - 1)
            places += [tree.start + at if at < tree.trunk else branch + at - tree.trunk for at in predicting]
            targets += sequences[row][starts[row] :]
            branch += length
    return CompletionPack(
        input_ids=torch.tensor([tokens]),
        position_ids=torch.tensor([positions]),
        trees=trees,
        rows=tuple(rows),
        lengths=tuple(len(sequences[row]) - starts[row] for row in rows),
        places=torch.tensor(places),
        targets=torch.tensor(targets),
    )


def without_padding(
    input_ids: Tensor, attention_mask: Tensor, num_completion_places: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and completions of TRL's batch [B, P + C], prompts padded on the left, completions on the right."""
    prompts, completions = [], []
    for ids, mask in zip(input_ids.cpu(), attention_mask.bool().cpu(), strict=True):
        cut = len(ids) - num_completion_places
        prompts.append(ids[:cut][mask[:cut]].tolist())
        completions.append(ids[cut:][mask[cut:]].tolist())
    return prompts, completions


def packed_logps(model: PreTrainedModel, pack: CompletionPack, *, temperature: float) -> tuple[Tensor, Tensor]:
    """[N] log-probabilities of a pack's targets, and [N] entropies, of a causal model that attends by `packed_tree`."""
    device = model.device
    backbone: Any = model.base_model
    hidden: Tensor = backbone(
        input_ids=pack.input_ids.to(device),
        position_ids=pack.position_ids.to(device),
        use_cache=False,
        trees=pack.trees,
    ).last_hidden_state
    head: Any = model.get_output_embeddings()
    predicting, bias = hidden[0, pack.places.to(device)], getattr(head, "bias", None)
    if bias is None and _is_frozen_on_cpu(head.weight):
        apply: Any = FrozenHeadLogps.apply
        pair: tuple[Tensor, Tensor] = apply(predicting, head.weight, pack.targets, temperature)
        return pair
    logps, entropies, *_ = ChunkedLogProbFunction.apply(
        predicting,
        head.weight,
        bias,
        pack.targets.to(device),
        temperature,
        head_tile_words(len(pack.targets), on_gpu=device.type != "cpu"),
        None,
        1.0,
        ("entropy",),
    )
    return logps, entropies


class FrozenHeadLogps(torch.autograd.Function):
    """[N] log-probabilities and entropies, as ChunkedLogProbFunction's, by a head that is not trained.

    What a token's log-probability gives its hidden state is known up to a factor as soon as its logits are, so the
    logits need not be computed again for the backward. Some tokens at a time are computed over the whole vocabulary.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """`hidden` is [N, H], `weight` [V, H], `targets` [N]."""
        logps, entropies = hidden.new_empty(len(hidden)), hidden.new_empty(len(hidden))
        slopes = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        at_a_time = frozen_head_tile_tokens(len(weight))
        for start in range(0, len(hidden), at_a_time):
            part = slice(start, start + at_a_time)
            wanted = targets[part, None]
            logits = (hidden[part] @ weight.T).div_(temperature)
            logits -= logits.amax(dim=-1, keepdim=True)
            shares = logits.exp()
            total = shares.sum(dim=-1, keepdim=True)
            logps[part] = (logits.gather(1, wanted) - total.log()).squeeze(1)
            shares /= total
            entropies[part] = total.log().squeeze(1) - logits.mul_(shares).sum(dim=-1)
            if slopes is not None:
                unit = torch.ones_like(wanted, dtype=shares.dtype)
                slopes[part] = (shares.neg_().scatter_add_(1, wanted, unit) @ weight).div_(temperature)
        ctx.save_for_backward(slopes)
        ctx.mark_non_differentiable(entropies)
        return logps, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """To the hidden states alone."""
        (slopes,) = ctx.saved_tensors
        return gradients[0][:, None] * slopes, None, None, None


def _is_frozen_on_cpu(weight: Tensor) -> bool:
    """On a GPU TRL's own kernels are at home."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and not weight.requires_grad


def add_packed_logps(model: PreTrainedModel, *, temperature: float) -> None:
    """Teach a causal model the argument `pack`: with it, a forward is `packed_logps`; without it, what it was before.

    So packs go through whatever is wrapped around the model (adapters, DDP) as any other input does.
    """
    before = model.forward

    @functools.wraps(type(model).forward)
    def forward(self: Any, *arguments: Any, pack: CompletionPack | None = None, **named: Any) -> Any:
        return before(*arguments, **named) if pack is None else packed_logps(self, pack, temperature=temperature)

    model.forward = types.MethodType(forward, model)


def causal_of(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The causal model itself, with adapters in place where there are some."""
    return model.get_base_model() if isinstance(model, PeftModel) else model
