"""The objective of CISPO: the ratio is a capped weight without gradient, so no token loses its own gradient."""

from torch import Tensor

from containers.contracts.configs.parts.policy_algorithms import PolicyAlgorithm


def capped(logps: Tensor, ratio: Tensor, advantages: Tensor, parts: PolicyAlgorithm) -> tuple[Tensor, Tensor]:
    """Return [N] −(ratio, at most clip_high, without gradient) × advantage × log-probability, and [N] bool: capped.

    Source: MiniMax 2025, arXiv:2506.13585, eq. 4 and 5, without a lower limit.
    Example: a ratio of 7 with the advantage 1 and clip_high 5 weighs the token's log-probability by 5.
    """
    return -ratio.detach().clamp(max=parts.clip_high) * advantages * logps, ratio > parts.clip_high
