"""What an engine that writes completions says of its tokens, against what the policy says: how far apart, and weights.

An engine has other kernels than the trainer, so it samples from a distribution that is a little beside the policy's; a
wrong temperature, a cut distribution or another adapter put it far beside. Tokens are flat, completion by completion.
"""

from typing import Literal

import torch
from torch import Tensor

from containers.losses.ratios import TokenOwners

ImportanceOver = Literal["token", "completion", "off"]


def sampling_kl(logps: Tensor, sampling: Tensor) -> Tensor:
    """Return [N] estimates of the KL of what wrote the tokens to the policy: never negative, and 0 where they agree.

    Args:
        logps: [N] log-probabilities under the policy.
        sampling: [N] under what wrote the tokens.

    The mean over tokens that were sampled is unbiased: r − 1 − log r with r = policy / sampling (k3 of
    http://joschu.net/blog/kl-approx.html).
    Example: a token twice as likely under the policy has 2 - 1 - ln 2 = 0.307.
    """
    difference = logps - sampling
    return difference.exp() - 1 - difference


def importance_weights(
    logps: Tensor, sampling: Tensor, owners: TokenOwners, *, over: ImportanceOver, cap: float
) -> Tensor:
    """Return [N] by how much more likely each token, or its whole completion, is under the policy; at most `cap`.

    Args:
        logps: [N] under the policy that the completions count as written by.
        sampling: [N] under what wrote them.
        owners: of the N tokens.

    Source: truncated importance sampling: Ionides 2008, doi:10.1198/106186008X320456; for engines: Yao et al. 2025,
    "Your efficient RL framework secretly brings you off-policy RL training".
    Example: tokens 1.5 and 3 times as likely have 1.5 and, with a cap of 2, 2.
    """
    difference = logps - sampling
    if over == "off":
        return torch.ones_like(difference)
    if over == "completion":
        difference = owners.sums(difference)[owners.of]
    return difference.exp().clamp(max=cap)


def effective_share(total: float, squares: float, count: float) -> float:
    """Return the share of samples that would tell as much without weights: (Σw)² / (N Σw²). Source: Kish 1965.

    Example: weights 1 and 3 count as 16 / (2 × 10) = 0.8 of two.
    """
    return total**2 / (count * squares) if count and squares else 1.0
