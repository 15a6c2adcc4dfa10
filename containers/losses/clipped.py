"""The objective of PPO and of most algorithms after it: the ratio is clipped where that makes the objective smaller."""

import torch
from torch import Tensor

from containers.contracts.configs.parts.policy_algorithms import PolicyAlgorithm


def clipped(logps: Tensor, ratio: Tensor, advantages: Tensor, parts: PolicyAlgorithm) -> tuple[Tensor, Tensor]:
    """Return [N] −min(ratio × advantage, clipped ratio × advantage), and [N] bool: clipped, so without a gradient.

    Source: Schulman et al. 2017 (PPO), arXiv:1707.06347, eq. 7; with two bounds: Yu et al. 2025, arXiv:2503.14476.
    Example: a ratio of 1.5 with the advantage 1 and clip_high 0.2 gives −1.2, and no gradient.
    """
    low = -torch.inf if parts.clip_low is None else 1 - parts.clip_low
    bounded = ratio.clamp(low, 1 + parts.clip_high)
    is_clipped = ((ratio < low) & (advantages < 0)) | ((ratio > 1 + parts.clip_high) & (advantages > 0))
    return -torch.minimum(ratio * advantages, bounded * advantages), is_clipped
