"""Ratios of the policy to the one that wrote the completions, and the KL to the reference.

Tokens are flat, completion by completion. In each function: logps, old_logps, reference_logps [N] log-probabilities of
the tokens under the policy, under the policy that wrote them, and under the reference; `owners`: the completion of each
token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenOwners:
    """Which completion each token belongs to.

    Attributes:
        of: [N] counted from 0, on the device of the tokens' values.
        num_completions: C, which the host knows, so that it need not read `of` from a GPU.
    """

    of: Tensor
    num_completions: int

    @classmethod
    def of_lengths(cls, lengths: Sequence[int], device: torch.device) -> "TokenOwners":
        """Return the owners of the tokens of completions with so many tokens each."""
        of = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        return cls(of.to(device), len(lengths))

    def sums(self, values: Tensor) -> Tensor:
        """Return [C] sums of the values [N] of each completion's tokens."""
        zeros = torch.zeros(self.num_completions, dtype=values.dtype, device=values.device)
        return zeros.index_add(0, self.of, values)


def token_ratio(logps: Tensor, old_logps: Tensor, owners: TokenOwners) -> Tensor:
    """Return [N] the probability of each token by what it was when the completion was written."""
    return (logps - old_logps).exp()


def completion_ratio(logps: Tensor, old_logps: Tensor, owners: TokenOwners) -> Tensor:
    """Return [N] the ratio of each token's whole completion. Source: Ahmadian et al. 2024, arXiv:2402.14740."""
    return owners.sums(logps - old_logps).exp()[owners.of]


def completion_mean_ratio(logps: Tensor, old_logps: Tensor, owners: TokenOwners) -> Tensor:
    """Return [N] the geometric mean of the ratios of the completion's tokens.

    Source: Zheng et al. 2025 (GSPO), arXiv:2507.18071, eq. 7.
    Example: a completion whose two tokens have the ratios 2 and 8 has 4 for both.
    """
    difference = logps - old_logps
    return (owners.sums(difference) / owners.sums(torch.ones_like(difference))).exp()[owners.of]


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


RATIOS: Mapping[str, Callable[[Tensor, Tensor, TokenOwners], Tensor]] = {
    "token": token_ratio,
    "completion": completion_ratio,
    "completion_mean": completion_mean_ratio,
}
KL_ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
