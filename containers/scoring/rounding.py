"""How far rounding alone moves scores: a bound from the number of layers, and a measurement on the model itself."""

import math
from collections.abc import Callable, Sequence

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from containers.models.offloading import held_weight
from containers.models.tensor_parallel import share_of_weight
from containers.models.weights import SCORE_HEAD

# What scores on another code path may change: of a typical margin, and of the orders of pairs. benchmarks/bf16_paths.md
# has how far models of random weights were apart.
MARGIN_SHARE = 0.15
ORDERS_SHARE = 0.05
# Of the weights of a layer, how many a trial moves by their last bit: together as far as rounding all of them does, or
# a little farther. The share of the root mean square: √(1/8) of a bit, and √(1/12).
_MOVED = 1 / 8
_TRIALS = 3
# Merging adapters moved scores by 0.6 to 1.1 times the largest of three trials, in models of 8 and 28 layers.
_ALLOWED_TRIALS = 3.0
# The last bit that a weight has in bfloat16, in either type.
_LAST_BIT = {torch.bfloat16: (torch.int16, 1), torch.float32: (torch.int32, 1 << 16)}


def allowed_difference(
    dtype: torch.dtype, scores: Sequence[float], *, num_layers: int, is_rounded: bool = False
) -> float:
    """Return the largest difference between a conversation's scores on two code paths that rounding explains.

    It tells other weights from rounding; it does not say that rewards and orders are equal.

    1e-4 in float32 (adapter and merged copies agreed within 1.3e-7). In bfloat16 each layer rounds its two additions by
    up to 2⁻⁹ of them, and such errors grow like a random walk. The bound is four times that, relative to the largest
    score (or to 1 if all are smaller); at least 2 %. benchmarks/bf16_paths.md has the measurements.

    Args:
        num_layers: layers of the model.
        is_rounded: one side's weights were rounded once more: adapters were merged, or float32 was saved as bfloat16.
    """
    if dtype == torch.float32:
        return 1e-4
    largest = max(1.0, max((abs(score) for score in scores), default=0.0))
    return largest * (2 if is_rounded else 1) * max(2e-2, 4 * 2**-9 * math.sqrt(2 * num_layers))


def allowed_orders(num_pairs: int) -> int:
    """Return how many of the pairs may change their order; one always may, since nearly equal scores do by chance."""
    return max(1, int(ORDERS_SHARE * num_pairs))


def num_layers_of(model: PreTrainedModel | PeftModel) -> int:
    """Number of layers of the model's text part."""
    return int(model.config.get_text_config().num_hidden_layers)


def allowed_by_trial(turn: Callable[[int], object], score: Callable[[], Sequence[float]]) -> float:
    """Return the largest difference between scores that one more rounding of the layers' weights explains, measured.

    Some models of bfloat16 pass small errors on enlarged, more than `allowed_difference` knows. Three times, the last
    bit of other weights is turned and turned back, so the model is afterwards what it was.

    Args:
        turn: `turn_last_bits` with that seed, on the model wherever it is held.
        score: the scores [N] of the same conversations, by the model as it is.
    """
    plain, found = score(), []
    for trial in range(_TRIALS):
        turn(trial)
        try:
            found.append(max(abs(one - other) for one, other in zip(score(), plain, strict=True)))
        finally:
            turn(trial)
    return _ALLOWED_TRIALS * max(found)


@torch.no_grad()
def turn_last_bits(model: PreTrainedModel, seeds: list[int]) -> list[None]:
    """Turn the last bit of one weight in eight of the layers' matrices; a second call with the same seed undoes it.

    Args:
        model: without adapters; in bfloat16, or in float32 with weights that were saved in bfloat16.
    """
    for seed in seeds:
        layers = [one for name, one in model.named_modules() if isinstance(one, torch.nn.Linear) and name != SCORE_HEAD]
        for number, layer in enumerate(layers):
            weight = share_of_weight(held_weight(layer).data)
            bits, last = _LAST_BIT[weight.dtype]
            # One for each layer: of others, programs that hold the model together may have shares of another size.
            generator = torch.Generator(weight.device).manual_seed(seed * len(layers) + number)
            turned = torch.rand(weight.shape, generator=generator, device=weight.device) < _MOVED
            weight.view(bits).bitwise_xor_(turned.to(bits) * last)
    return [None] * len(seeds)
