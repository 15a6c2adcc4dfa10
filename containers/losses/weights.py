"""The weight of a token in the loss, from the lengths of the whole step over all ranks.

It is known before the first forward, so the pack in which a token lies, accumulation and ranks cannot change the loss.
A completion that does not take part counts nowhere: neither in the sum nor in what it is divided by.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def by_completion(lengths: Tensor, longest: int) -> Tensor:
    """Return [C] the weight of a token of each completion, so that each completion weighs the same.

    Args:
        lengths: [C] tokens of each completion of the step that takes part.
        longest: maximum tokens of a completion; not used.

    Example: lengths [1, 3] give [1/2, 1/6].
    """
    return 1 / (len(lengths) * lengths)


def by_token(lengths: Tensor, longest: int) -> Tensor:
    """Return [C] weights with which each token of the step weighs the same. Source: arXiv:2503.14476, section 3.3.

    Example: lengths [1, 3] give [1/4, 1/4].
    """
    return torch.ones_like(lengths, dtype=torch.float) / lengths.sum()


def by_constant(lengths: Tensor, longest: int) -> Tensor:
    """Return [C] weights of 1 / (C × longest): lengths change nothing. Source: arXiv:2503.20783, section 3.2.

    Example: lengths [1, 3] and a longest of 4 give [1/8, 1/8].
    """
    return torch.full_like(lengths, 1 / (len(lengths) * longest), dtype=torch.float)


WEIGHTS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "completion": by_completion,
    "token": by_token,
    "constant": by_constant,
}
