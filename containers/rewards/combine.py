"""One reward from several terms: weights, clips and conditions; and no signal where nothing is right.

Where all completions of a prompt are wrong, differences in a shaped term would become advantages as large as those of
right against wrong. Source: verl-recipe, issue 125; exact match fell from .715 to .10 that way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from containers.contracts.configs.parts.rewards import RewardTerm, outcomes_of


@dataclass(frozen=True)
class CombinedRewards:
    """The rewards of R completions, the K of a prompt adjacent.

    Attributes:
        rewards: [R] float64.
        takes_part: [R] bool; false where a term could not tell, or the completion is masked.
        divides: [R / K] bool; false where shaping alone tells a prompt's completions apart, since all are equally
            right. An advantage that is divided by the group's spread is then not divided: as large as the weights say.
    """

    rewards: Tensor
    takes_part: Tensor
    divides: Tensor


def weighted(rewards: Mapping[str, Tensor], terms: Sequence[RewardTerm]) -> tuple[Tensor, Tensor]:
    """Return the weighted sums of outcomes and of shaping, [R] each; NaN, where a term could not tell, counts as 0.

    Args:
        rewards: by name of the term, [R].
    """
    outcomes, first = outcomes_of(terms), next(iter(rewards.values()))
    of_outcomes, of_shaping = torch.zeros_like(first), torch.zeros_like(first)
    for term in terms:
        value = rewards[term.name].nan_to_num(nan=0.0)
        if term.clip is not None:
            value = value.clamp(-term.clip, term.clip)
        if term.only_if is not None:
            value = value * (rewards[term.only_if].nan_to_num(nan=0.0) > 0)
        total = of_outcomes if term.name in outcomes else of_shaping
        total += term.weight * value
    return of_outcomes, of_shaping


def combined(
    rewards: Mapping[str, Tensor],
    terms: Sequence[RewardTerm],
    *,
    penalties: Tensor,
    masked: Tensor,
    num_generations: int,
) -> CombinedRewards:
    """Combine the rewards of the terms.

    In a group of which no completion is right, shaping and penalties count nothing. Where the reward model takes the
    place of the outcome, every completion has more or less of it, and they always count.

    Args:
        rewards: by name of the term, [R]; NaN where it could not tell.
        penalties: [R], subtracted.
        masked: [R] bool; true for completions that are not to take part, whatever the terms say.
        num_generations: K.

    Example: with an outcome of weight 1 and a length term of weight 0.1, a group of outcomes [0, 0] and lengths
        [0, -1] has the rewards [0, 0]; of outcomes [1, 0] it has [1, -0.1]; of outcomes [1, 1] it has [1, 0.9].
    """
    takes_part = torch.stack([~found.isnan() for found in rewards.values()]).all(dim=0) & ~masked
    of_outcomes, of_shaping = weighted(rewards, terms)
    of_shaping = of_shaping - penalties
    groups = (-1, num_generations)
    right, part = of_outcomes.view(groups), takes_part.view(groups)
    if any(term.is_outcome for term in terms):
        has_outcome = ((right > 0) & part).any(dim=1)
        highest = right.masked_fill(~part, -torch.inf).amax(dim=1)
        divides = highest > right.masked_fill(~part, torch.inf).amin(dim=1)
    else:
        has_outcome = divides = torch.ones(len(right), dtype=torch.bool)
    shaping = of_shaping.view(groups) * has_outcome[:, None]
    return CombinedRewards((right + shaping).flatten(), takes_part, divides)
