"""Packed rows beside padded rows on one device: scores, log-probabilities, gradients; and beside the CPU's float32."""

import copy
import math
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import logsigmoid

from containers.algorithms.reward_model import make_packs, packed_scores
from containers.packing.attention import packed
from containers.packing.kernel import kernel_text
from containers.packing.logps import completion_packs
from containers.packing.padded import padded_rows_of

# Values of all items [N], and their loss.
Way = Callable[[Any], tuple[Tensor, Tensor]]
_LAYERS_OF_REFERENCE = 4
_PACK_TOKENS = 4096


def compared(kind: str, model: Any, *, device: str, lengths: tuple[int, int], count: int) -> list[dict[str, Any]]:
    """Return how far packed rows are from padded ones, and from float32 on the CPU.

    Args:
        kind: `reward model`, or `policy` for a causal model.
        model: in float32 on the CPU; it is moved to the device.
        lengths: most tokens of a prompt, and of an answer.
        count: prompts, each with 2 answers that are scored, or with 4 whose log-probabilities are computed.
    """
    found: list[dict[str, Any]] = []
    ways = _ways(kind, model, lengths=lengths, count=count)
    small = _first_layers(model)
    model.to(device)
    for name in ("float32", "bf16"):
        padded, own = _computed(model, ways["padded"], name), _computed(model, ways["packed"], name)
        found.append({"what": f"{kind}, {name}, packed beside padded", **_apart(own, padded)})
        del padded, own
    text = kernel_text(model) or "no kernel was tried"
    reference = _computed(small, ways["padded"], "float32")
    if device != "cpu":
        small.to(device)
    for name, way in (("float32", "padded"), ("bf16", "padded"), ("bf16", "packed")):
        what = f"{kind}, {_LAYERS_OF_REFERENCE} layers, {name} {way} on {device} beside float32 padded on the CPU"
        found.append({"what": what, **_apart(_computed(small, ways[way], name), reference)})
    found[-1]["note"] = text
    return found


def weights_apart(one: Path, other: Path) -> dict[str, Any]:
    """Return whether two files of weights are equal bit by bit; else by how much they differ."""
    left, right = load_file(one), load_file(other)
    names = sorted(left)
    if names != sorted(right):
        return {"equal": False, "problem": "other names of weights"}
    pairs = [(left[name].double(), right[name].double()) for name in names]
    return {
        "equal": all(torch.equal(left[name], right[name]) for name in names),
        "share_equal": float(sum((a == b).sum() for a, b in pairs) / sum(a.numel() for a, _ in pairs)),
        "largest": max(float((a - b).abs().max()) for a, b in pairs),
        "relative": math.sqrt(_sum_of_squares(a - b for a, b in pairs) / _sum_of_squares(b for _, b in pairs)),
    }


def _sum_of_squares(tensors: Iterable[Tensor]) -> float:
    return sum(float(one.square().sum()) for one in tensors)


def _first_layers(model: Any) -> Any:
    small = copy.deepcopy(model)
    small.model.layers = small.model.layers[:_LAYERS_OF_REFERENCE]
    small.config.num_hidden_layers = len(small.model.layers)
    return small


def _ways(kind: str, model: Any, *, lengths: tuple[int, int], count: int) -> dict[str, Way]:
    rng = random.Random(0)  # noqa: S311 - tokens, no secret
    words = model.config.vocab_size

    def drawn(most: int) -> list[int]:
        return [rng.randrange(5, words) for _ in range(rng.randint(most // 2, most))]

    prompts = [drawn(lengths[0]) for _ in range(count)]
    if kind == "reward model":
        pairs = [([*prompt, *drawn(lengths[1])], [*prompt, *drawn(lengths[1])]) for prompt in prompts]
        return {"padded": partial(_padded_pairs, pairs=pairs), "packed": partial(_packed_pairs, pairs=pairs)}
    asked = [prompt for prompt in prompts for _ in range(4)]
    answers = [drawn(lengths[1]) for _ in asked]
    return {
        "padded": partial(_logps, packs=padded_rows_of(asked, answers, at_a_time=4), num_rows=len(asked)),
        "packed": partial(_logps, packs=completion_packs(asked, answers, max_tokens=_PACK_TOKENS), num_rows=len(asked)),
    }


def _padded_pairs(model: Any, *, pairs: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    sides = [side for pair in pairs for side in pair]
    width = max(map(len, sides))
    ids = torch.tensor([side + [0] * (width - len(side)) for side in sides], device=model.device)
    mask = torch.tensor([[1] * len(side) + [0] * (width - len(side)) for side in sides], device=model.device)
    scores = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float().view(-1, 2)
    return scores.flatten(), -logsigmoid(scores[:, 0] - scores[:, 1]).mean()


def _packed_pairs(model: Any, *, pairs: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    packs = make_packs(pairs, max_tokens=_PACK_TOKENS)
    with packed(model):
        scores = torch.cat([packed_scores(model, pack, model) for pack in packs])
    scores = scores[torch.tensor([place for pack in packs for place in pack.pairs], device=scores.device).argsort()]
    return scores.flatten(), -logsigmoid(scores[:, 0] - scores[:, 1]).mean()


def _logps(model: Any, *, packs: Sequence[Any], num_rows: int) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of all tokens, and a loss in which every second completion is to be unlikelier."""
    of_row: list[Tensor | None] = [None] * num_rows
    around: AbstractContextManager[None] = packed(model) if hasattr(packs[0], "trees") else nullcontext()
    with around:
        for pack in packs:
            for row, values in zip(pack.rows, pack.by_completion(pack.computed(model, 1.0)[0]), strict=True):
                of_row[row] = values
    values = [row for row in of_row if row is not None]
    loss = torch.stack([values[row].mean() * (-1) ** row for row in range(num_rows)]).mean()
    return torch.cat(values), loss


def _computed(model: Any, way: Way, name: str) -> tuple[Tensor, Tensor, float]:
    """Return the values, the gradient of all weights as one vector, both on the CPU, and the loss."""
    model.zero_grad()
    on = model.device.type
    with torch.autocast(on, dtype=torch.bfloat16) if name == "bf16" else nullcontext():
        values, loss = way(model)
    torch.autograd.backward(loss)
    gradient = torch.cat([part.grad.flatten().cpu() for part in model.parameters() if part.grad is not None])
    model.zero_grad()
    return values.detach().float().cpu(), gradient, float(loss.detach())


def _apart(one: tuple[Tensor, Tensor, float], other: tuple[Tensor, Tensor, float]) -> dict[str, float]:
    (values, gradient, loss), (wanted, reference, wanted_loss) = one, other
    norm = reference.norm()
    return {
        # A policy's loss here is a difference, which may be nearly nothing: its terms are the measure then.
        "loss_relative": abs(loss - wanted_loss) / max(abs(wanted_loss), float(wanted.abs().mean())),
        "values_largest": float((values - wanted).abs().max()),
        "values_mean": float((values - wanted).abs().mean()),
        "gradient_relative": float((gradient - reference).norm() / norm),
        "gradient_cosine": float(torch.dot(gradient / gradient.norm(), reference / norm)),
    }
