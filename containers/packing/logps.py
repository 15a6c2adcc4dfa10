"""Log-probabilities of completions from packed rows: a prompt is computed once for all of its completions.

Only tokens that predict a completion's token go through the head, tile by tile, so that logits of all tokens over the
whole vocabulary never exist at once. TRL's own function does this; if the head is not trained and there is no GPU, a
function that computes no logits twice.
"""

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeAlias

import torch
from peft import PeftModel
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from trl.kernels import ChunkedLogProbFunction

from containers.distributed.devices import device_of
from containers.packing.padded import PaddedRows
from containers.packing.scoring import packed_rows
from containers.packing.trees import PackedRow, lay_out
from containers.token_budgets import frozen_head_tile_tokens, head_tile_words


@dataclass(frozen=True)
class CompletionPack(PackedRow):
    """One row of prompts with their completions, without padding.

    Attributes:
        rows: place of each of its completions in the batch.
        lengths: targets in each of these completions.
        places: [N] place in the row of each predicting token, completion by completion.
        targets: [N] the predicted tokens.
    """

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    places: Tensor
    targets: Tensor

    def by_completion(self, values: Tensor) -> tuple[Tensor, ...]:
        """Split values of the N predicted tokens by completion."""
        return torch.split(values, list(self.lengths))

    def computed(
        self, model: PreTrainedModel, temperature: float, *, entropy_learns: bool = False
    ) -> tuple[Tensor, Tensor, None]:
        """Return `packed_logps`, and no further loss."""
        return *packed_logps(model, self, temperature=temperature, entropy_learns=entropy_learns), None

    def states(self, backbone: Any, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the states [N, H] at the predicting tokens, and [C, H] at each completion's last token."""
        hidden: Tensor = backbone(**self.given(device)).last_hidden_state[0]
        lasts = [place for tree in self.trees for place in tree.lasts]
        return hidden[self.places.to(device)], hidden[lasts]


Pack: TypeAlias = CompletionPack | PaddedRows
# Makes packs, or padded rows, of prompts, their completions and, if not all are targets, which tokens of these are.
Cut: TypeAlias = Callable[..., Sequence[Pack]]


def completion_packs(
    prompts: Sequence[list[int]],
    completions: Sequence[list[int]],
    counted: Sequence[Sequence[bool]] | None = None,
    *,
    max_tokens: int,
    num_together: int = 1,
) -> list[CompletionPack]:
    """Return packs in which completions of equal prompts share the prompt, the longest first.

    A pack has at most `max_tokens`, unless a prompt with the completions that must lie together is longer. Other
    completions of one prompt that do not fit together are in several packs.

    Args:
        prompts: token ids of each completion's prompt, none empty.
        completions: token ids.
        counted: for each completion, which of its tokens are targets; None: all of them.
        num_together: so many successive completions have one prompt and are never in several packs; 2 for pairs.
    """
    alike: dict[tuple[int, ...], list[range]] = {}
    for row in range(0, len(prompts), num_together):
        alike.setdefault(tuple(prompts[row]), []).append(range(row, row + num_together))
    groups = [
        piece
        for prompt, units in alike.items()
        for piece in _pieces(
            units, [sum(len(completions[row]) for row in rows) for rows in units], room=max_tokens - len(prompt)
        )
    ]
    sequences = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    packs = packed_rows(sequences, groups, max_items=len(sequences), max_tokens=max_tokens)
    starts = [len(prompt) for prompt in prompts]
    return [_pack(sequences, starts, members, counted) for members in packs]


def _pieces(units: Sequence[range], lengths: Sequence[int], *, room: int) -> list[list[int]]:
    """Return the rows of the units in order, cut where the next unit would not fit."""
    pieces: list[list[int]] = []
    free = 0
    for rows, length in zip(units, lengths, strict=True):
        if length > free or not pieces:
            pieces.append([])
            free = room
        pieces[-1] += rows
        free -= length
    return pieces


def _pack(
    sequences: Sequence[list[int]],
    starts: Sequence[int],
    groups: Sequence[Sequence[int]],
    counted: Sequence[Sequence[bool]] | None,
) -> CompletionPack:
    """Return one pack of these groups; `starts` says where in each sequence its completion begins."""
    laid_out = lay_out([[sequences[row] for row in group] for group in groups])
    rows, lengths, places, targets = [row for group in groups for row in group], [], [], []
    for group, tree in zip(groups, laid_out.trees, strict=True):
        branch = tree.start + tree.trunk
        for row, length in zip(group, tree.branches, strict=True):
            # Predicting tokens are in the trunk or in the branch; the last token of the sequence predicts nothing.
            predicting: Sequence[int] = range(starts[row] - 1, len(sequences[row]) - 1)
            if counted is not None:
                predicting = [*compress(predicting, counted[row])]
            places += [tree.start + at if at < tree.trunk else branch + at - tree.trunk for at in predicting]
            targets += [sequences[row][at + 1] for at in predicting]
            lengths.append(len(predicting))
            branch += length
    return CompletionPack(
        laid_out.input_ids,
        laid_out.position_ids,
        laid_out.trees,
        rows=tuple(rows),
        lengths=tuple(lengths),
        places=torch.tensor(places),
        targets=torch.tensor(targets),
    )


def packed_logps(
    model: PreTrainedModel, pack: CompletionPack, *, temperature: float, entropy_learns: bool = False
) -> tuple[Tensor, Tensor]:
    """Return [N] log-probabilities of a pack's targets and [N] entropies; the model must attend by `packed_tree`.

    Args:
        entropy_learns: the entropies have a gradient too, which costs a second forward of the head.
    """
    device = device_of(model)
    backbone: Any = model.base_model
    hidden: Tensor = backbone(**pack.given(device)).last_hidden_state
    head: Any = model.get_output_embeddings()
    if isinstance(head, FSDPModule):
        # FSDP gathers a layer before its forward, and this uses the head's weight without one. The backward's end, or
        # the next save, divides it again.
        head.unshard()
    predicting, bias = hidden[0, pack.places.to(device)], getattr(head, "bias", None)
    if entropy_learns and torch.is_grad_enabled():
        return _with_entropy_gradient(head, predicting, pack.targets.to(device), temperature)
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


def _with_entropy_gradient(head: Any, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return [N] log-probabilities and [N] entropies, both with a gradient; logits of few tokens exist at a time."""

    def tile(part: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        scores = (head(part).float() / temperature).log_softmax(dim=-1)
        return scores.gather(1, wanted[:, None]).squeeze(1), -(scores.exp() * scores).sum(dim=-1)

    at_a_time = frozen_head_tile_tokens(len(head.weight))
    tiles = [
        checkpoint(tile, hidden[start : start + at_a_time], targets[start : start + at_a_time], use_reentrant=False)
        for start in range(0, len(targets), at_a_time)
    ]
    logps, entropies = zip(*tiles, strict=True)
    return torch.cat(logps), torch.cat(entropies)


def row_logps(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    """Return [C] log-probabilities of one completion alone in its row, from the causal model's own logits."""
    ids = torch.tensor([[*prompt, *completion]], device=model.device)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(completion) + 1).logits
    logps: Tensor = logits[0, -len(completion) - 1 : -1].float().log_softmax(-1)
    return logps.gather(-1, ids[0, -len(completion) :, None]).squeeze(-1)


class FrozenHeadLogps(torch.autograd.Function):
    """[N] log-probabilities and entropies for a head that is not trained, with ChunkedLogProbFunction's results.

    The logits of a token give the gradient of its hidden state up to a factor. So the forward keeps that gradient, and
    the backward need not compute logits again. A few tokens at a time are computed over the whole vocabulary.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Return [N] log-probabilities and [N] entropies; `hidden` is [N, H], `weight` [V, H], `targets` [N]."""
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
        """Return the gradient of the hidden states only."""
        (slopes,) = ctx.saved_tensors
        return gradients[0][:, None] * slopes, None, None, None


def _is_frozen_on_cpu(weight: Tensor) -> bool:
    """Whether the head is frozen, float32 and on a CPU; on a GPU TRL's own kernels are used."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and not weight.requires_grad


def add_logps(model: PreTrainedModel, *, temperature: float, entropy_learns: bool = False) -> None:
    """Give a causal model's forward the argument `pack`: with it, a forward is `pack.computed`; without, as before.

    So packs and padded rows pass through the model's wrappers (adapters, DDP) like any other input.

    Args:
        entropy_learns: the entropies have a gradient.
    """
    before = model.forward

    @functools.wraps(type(model).forward)
    def forward(self: Any, *arguments: Any, pack: Pack | None = None, **named: Any) -> Any:
        if pack is None:
            return before(*arguments, **named)
        return pack.computed(self, temperature, entropy_learns=entropy_learns)

    model.forward = types.MethodType(forward, model)


def causal_of(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """Return the causal model inside a PeftModel, with its adapters in place, or the model itself."""
    return model.get_base_model() if isinstance(model, PeftModel) else model
