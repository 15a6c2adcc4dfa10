"""The objective of SAPO: a smooth gate in place of a clip, so that a token far from its old probability learns less."""

import torch
from torch import Tensor

from containers.contracts.configs.parts.policy_algorithms import PolicyAlgorithm

_FOR_BETTER, _FOR_WORSE = 1.0, 1.05


def soft(logps: Tensor, ratio: Tensor, advantages: Tensor, parts: PolicyAlgorithm) -> tuple[Tensor, Tensor]:
    """Return [N] −advantage × σ(τ (ratio − 1)) × 4 / τ, and [N] bool: always false, since nothing is cut off.

    τ is 1 for advantages above 0, else 1.05. Source: Gao et al. 2025, arXiv:2511.20347, with its temperatures.
    Example: at a ratio of 1 the slope is the advantage, as without a gate; at 3 it is 0.42 of it.
    """
    temperature = torch.where(advantages > 0, _FOR_BETTER, _FOR_WORSE)
    gate = torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature
    return -gate * advantages, torch.zeros_like(ratio, dtype=torch.bool)
