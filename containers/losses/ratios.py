"""Ratios of the policy to the one that wrote the completions, and the KL to the reference.

Tokens are flat, completion by completion. In each function: logps, old_logps, reference_logps [N] log-probabilities of
the tokens under the policy, under the policy that wrote them, and under the reference; `of` [N] the completion of each
token, counted from 0.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def token_ratio(logps: Tensor, old_logps: Tensor, of: Tensor) -> Tensor:
    """Return [N] the probability of each token by what it was when the completion was written."""
    return (logps - old_logps).exp()


def completion_ratio(logps: Tensor, old_logps: Tensor, of: Tensor) -> Tensor:
    """Return [N] the ratio of each token's whole completion. Source: Ahmadian et al. 2024, arXiv:2402.14740."""
    return completion_sums(logps - old_logps, of).exp()[of]


def completion_mean_ratio(logps: Tensor, old_logps: Tensor, of: Tensor) -> Tensor:
    """Return [N] the geometric mean of the ratios of the completion's tokens.

    Source: Zheng et al. 2025 (GSPO), arXiv:2507.18071, eq. 7.
    Example: a completion whose two tokens have the ratios 2 and 8 has 4 for both.
    """
    difference = logps - old_logps
    return (completion_sums(difference, of) / completion_sums(torch.ones_like(difference), of)).exp()[of]


def k1(logps: Tensor, reference_logps: Tensor) -> Tensor:
    """Return [N] log policy − log reference: unbiased, of either sign. Its gradient is not that of the KL."""
    return logps - reference_logps


def k2(logps: Tensor, reference_logps: Tensor) -> Tensor:
    """Return [N] half the square of `k1`; its gradient is that of the KL, on the policy's own tokens."""
    return (logps - reference_logps).square() / 2


def k3(logps: Tensor, reference_logps: Tensor) -> Tensor:
    """Return [N] exp(−k1) − 1 + k1: unbiased and never negative.

    Source: Shao et al. 2024 (GRPO), arXiv:2402.03300, eq. 4.
    """
    difference = reference_logps - logps
    return difference.exp() - difference - 1


def completion_sums(values: Tensor, of: Tensor) -> Tensor:
    """Return [C] sums of the tokens' values of each completion."""
    number = int(of[-1]) + 1 if len(of) else 0
    return torch.zeros(number, dtype=values.dtype, device=values.device).index_add(0, of, values)


RATIOS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "token": token_ratio,
    "completion": completion_ratio,
    "completion_mean": completion_mean_ratio,
}
KL_ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
