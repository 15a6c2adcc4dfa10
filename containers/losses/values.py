"""Values: what a critic expects at each token, the advantages that follow, and how wrong it was.

Tokens are flat, completion by completion; the functions on one completion say so.
"""

import torch
from torch import Tensor


def discounted(rewards: Tensor, lengths: Tensor, *, discount: float, last: Tensor | None = None) -> Tensor:
    """Return [N] the discounted sum of rewards from each token on, to the end of its completion.

    Args:
        rewards: [N] of each token.
        lengths: [C] tokens of each completion; their sum is N.
        discount: γ, by which what comes a token later counts less.
        last: [C] what comes after the last token; None: nothing.

    Example: rewards [0, 0, 1, 2] of completions of 3 and 1 tokens, with a discount of 0.5, give [0.25, 0.5, 1, 2].
    """
    if not len(lengths):
        return rewards
    # Right-aligned, so that all completions end in the same column.
    width = int(lengths.max())
    has_token = torch.arange(width, device=rewards.device) >= width - lengths.to(rewards.device)[:, None]
    grid = rewards.new_zeros(len(lengths), width)
    grid[has_token] = rewards
    ahead = rewards.new_zeros(len(lengths)) if last is None else last.to(rewards)
    for column in reversed(range(width)):
        ahead = grid[:, column] + discount * ahead
        grid[:, column] = ahead
    return grid[has_token]


def gae(
    rewards: Tensor, values: Tensor, lengths: Tensor, *, discount: float, trace: float, last: Tensor | None = None
) -> Tensor:
    """Return [N] generalised advantages.

    Args:
        rewards: [N].
        values: [N] what the critic expected before each token.
        lengths: [C] tokens of each completion; their sum is N.
        discount: γ.
        trace: λ; 1 gives what came less what was expected, 0 the error of one step.
        last: [C] the value after the last token; None: 0.

    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16.
    Example: rewards [0, 1] and values [0.5, 0.5] of one completion with γ = λ = 1 give [0.5, 0.5].
    """
    after = torch.cat([values[1:], values.new_zeros(1)])
    ends = lengths.cumsum(0).to(values.device) - 1
    after[ends] = values.new_zeros(len(lengths)) if last is None else last.to(values)
    return discounted(rewards + discount * after - values, lengths, discount=discount * trace)


def value_error(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None) -> tuple[Tensor, Tensor]:
    """Return [N] half the squared error of each value, and [N] bool: clipped, so without a gradient.

    Args:
        values: [N] by the critic.
        old_values: [N] by the critic when the completions were new.
        returns: [N] what it is to expect.
        clip: a value may move so far from its old one; the larger of both errors counts. None: no limit.

    Source: Schulman et al.'s code for arXiv:1707.06347 (baselines, ppo2); the same in Ouyang et al. 2022.
    Example: 2 beside an old value of 1 and a return of 3, with a clip of 0.5, has the error of 1.5: 1.125.
    """
    plain = (values - returns).square() / 2
    if clip is None:
        return plain, torch.zeros_like(plain, dtype=torch.bool)
    bounded = old_values + (values - old_values).clamp(-clip, clip)
    limited = (bounded - returns).square() / 2
    return torch.maximum(plain, limited), limited > plain


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """Return the share of the variance of returns that the values explain: 1 is all, 0 no more than their mean.

    Args:
        values: [N] before the update.
        returns: [N] discounted sums of rewards, which no value is part of.

    Example: values [1, 2] of returns [1, 3] explain 1 - 0.25/1 = 0.75.
    """
    spread = float(returns.var(unbiased=False)) if len(returns) else 0.0
    return 1 - float((returns - values).var(unbiased=False)) / spread if spread > 0 else 0.0
