"""Advantages: how much better a completion is than others, from the rewards of a whole step.

A completion that does not take part (its reward is unknown, or it is masked) has the advantage 0, and is in no mean.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def leave_one_out(rewards: Tensor, takes_part: Tensor) -> Tensor:
    """Compare each completion with the mean of its siblings.

    Args:
        rewards: [P, K] rewards of the K completions of each of P prompts.
        takes_part: [P, K] bool.

    Returns:
        [P, K] advantages; 0 where no sibling takes part.

    Source: Ahmadian et al. 2024, arXiv:2402.14740, eq. 7.
    Example: rewards [1, 0, 0.5] give [0.75, -0.75, 0].
    """
    count = takes_part.sum(dim=1, keepdim=True)
    return group(rewards, takes_part) * torch.where(count > 1, count / (count - 1).clamp(min=1), 0.0)


def group(rewards: Tensor, takes_part: Tensor) -> Tensor:
    """Compare each completion with the mean of its group, itself included; shapes as `leave_one_out`.

    Source: Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783, section 3.2.
    Example: rewards [1, 0, 0.5] give [0.5, -0.5, 0].
    """
    return torch.where(takes_part, rewards - _mean(rewards, takes_part), 0.0)


def group_spread(
    rewards: Tensor, takes_part: Tensor, *, rounding: float = 0.0, divides: Tensor | None = None
) -> Tensor:
    """Return `group` divided by the group's standard deviation (with N - 1); shapes as `leave_one_out`.

    Args:
        rounding: differences of rewards up to this are noise. A group whose rewards lie within it has advantages of 0:
            divided by its spread, noise of 1e-3 would give advantages as large as those of real differences.
        divides: [P] bool; groups of which it is false get `group`. None: all are divided.

    Source: Shao et al. 2024 (GRPO), arXiv:2402.03300, section 4.1.2. TRL adds 1e-4 to the deviation; so does this.
    Example: rewards [1, 0, 0.5] have the deviation 0.5 and give [1, -1, 0], up to that 1e-4.
    """
    centred = group(rewards, takes_part)
    deviation = (centred.square().sum(dim=1, keepdim=True) / _others(takes_part)).sqrt()
    divided = centred / (deviation + 1e-4)
    if divides is not None:
        divided = torch.where(divides[:, None], divided, centred)
    return torch.where(has_spread(rewards, takes_part, rounding=rounding)[:, None], divided, 0.0)


def batch_spread(values: Tensor) -> Tensor:
    """Return [N] values less their mean, divided by their standard deviation (with N); 0 where they are all equal.

    Args:
        values: [N] one for each token of the whole step that takes part: the reward less the KL from there on.

    Source: Hu et al. 2025 (REINFORCE++), arXiv:2501.03262, eq. 10.
    Example: [1, 1, 3, 3] give [-1, -1, 1, 1].
    """
    centred = values - values.mean()
    deviation = centred.square().mean().sqrt()
    return centred / (deviation + 1e-8) if float(deviation) > 0 else torch.zeros_like(values)


def has_spread(rewards: Tensor, takes_part: Tensor, *, rounding: float = 0.0) -> Tensor:
    """Return [P] bool: the rewards of those of a prompt's completions that take part differ by more than `rounding`."""
    highest = rewards.masked_fill(~takes_part, -torch.inf).amax(dim=1)
    lowest = rewards.masked_fill(~takes_part, torch.inf).amin(dim=1)
    return (highest - lowest > rounding) & (takes_part.sum(dim=1) > 1)


def _mean(rewards: Tensor, takes_part: Tensor) -> Tensor:
    total = rewards.masked_fill(~takes_part, 0.0).sum(dim=1, keepdim=True)
    return total / takes_part.sum(dim=1, keepdim=True).clamp(min=1)


def _others(takes_part: Tensor) -> Tensor:
    return (takes_part.sum(dim=1, keepdim=True) - 1).clamp(min=1)


# The advantages that a group alone decides.
GROUP_ADVANTAGES: Mapping[str, Callable[..., Tensor]] = {
    "leave_one_out": leave_one_out,
    "group": group,
    "group_spread": group_spread,
}
