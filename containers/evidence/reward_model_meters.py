"""What a reward model shows of a policy's answers: are they unlike those that it saw at first, does padding raise them?

Both take a forward pass on a few answers of each step. The certificate measures padding on the answers of the data; a
policy writes others, and learns what pays (Mahalanobis distances in feature space: Lee et al. 2018, arXiv:1807.03888).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

import torch
from torch import Tensor

from containers.contracts.configs.parts.evidence import FILLER_TIMES, measured_of
from containers.distributed.ranks import spread_over_ranks
from containers.evals.answer_edits import padded
from containers.rewards.base import Answered, StateReward

# Directions of the pooled state that are followed, drawn by the seed.
_DIRECTIONS = 16
# Answers of the start model that say how states vary; with fewer than the second number nothing is said.
_MOST_REFERENCE, _FEWEST_REFERENCE = 128, 4 * _DIRECTIONS
# An answer of the start model itself is an outlier in one of a hundred cases.
_LEVEL = 0.01
# Answers on which the effect of padding is measured for its limit.
_FOR_A_LIMIT = 64
OUTLIERS, PADDING = "reward_state_outlier_fraction", "padding_rise"
# Of the variance in all directions, so that one without any does no harm.
_SMALLEST_SHARE = 1e-6


@dataclass
class RewardModelMeters:
    """Measures a few answers of each step.

    Attributes:
        reward: the reward model; of several the first.
        seed: of the directions.
        reference: pooled states of the start model's answers in those directions; a checkpoint has them.
    """

    reward: StateReward
    seed: int
    reference: list[list[float]] = field(default_factory=list)

    def figures(self, answered: Sequence[Answered]) -> dict[str, float]:
        """Return the curves of a step: share of outliers, and what padding adds to the reward of an answer.

        Args:
            answered: the step's completions, the same on every rank. Those of the first steps, until there are enough,
                count as the start model's.
        """
        found = dict[str, float]()
        if len(self.reference) < _FEWEST_REFERENCE:
            self.reference += self._states(self._fitting(answered[: _MOST_REFERENCE - len(self.reference)]))
        sample = self._fitting(answered[:: max(1, len(answered) // max(1, measured_of(len(answered))))])
        if len(self.reference) >= _FEWEST_REFERENCE and sample:
            outliers = are_outliers(torch.tensor(self.reference), torch.tensor(self._states(sample)))
            found[OUTLIERS] = float(outliers.double().mean())
        rises = self._rises(sample)
        if rises:
            found[PADDING] = fmean(rises)
        return found

    def padding(self, answered: Sequence[Answered]) -> dict[str, float]:
        """Return what padding adds on average, and its standard deviation among answers, on more of them."""
        rises = self._rises(self._fitting(answered[:_FOR_A_LIMIT]))
        return {PADDING: fmean(rises), f"{PADDING}_spread": stdev(rises)} if len(rises) > 1 else {}

    def _fitting(self, answered: Sequence[Answered]) -> list[Answered]:
        return [one for one in answered if self.reward.fits(one)]

    def _states(self, answered: Sequence[Answered]) -> list[list[float]]:
        """Return [N][directions] of the pooled states."""

        def own(part: Sequence[Answered]) -> list[list[float]]:
            states = self.reward.states(part)
            generator = torch.Generator().manual_seed(self.seed)
            width = states.shape[-1]
            directions = torch.randn(width, min(_DIRECTIONS, width), generator=generator) / width**0.5
            rows: list[list[float]] = (states @ directions).tolist()
            return rows

        return spread_over_ranks(answered, own)

    def _rises(self, sample: Sequence[Answered]) -> list[float]:
        """Return what twice the length in filler adds to the reward of each answer that has room for it."""
        longer = [(one, _padded(one)) for one in sample if one.text.strip()]
        pairs = [(one, other) for one, other in longer if self.reward.fits(other)]

        def own(part: Sequence[tuple[Answered, Answered]]) -> list[float]:
            before, after = (self.reward.rewards(self.reward.scored([pair[side] for pair in part])) for side in (0, 1))
            return [late - early for early, late in zip(before, after, strict=True)]

        return spread_over_ranks(pairs, own)


def are_outliers(reference: Tensor, found: Tensor) -> Tensor:
    """Return [N] bool: which points a normal sample like the reference has in one of a hundred cases.

    Hotelling's T² for one further point: n/(n+1) · d'S⁻¹d against p(n-1)/(n-p) · F(p, n-p).

    Args:
        reference: [n, p]; n > p.
        found: [N, p].
    """
    from scipy import stats  # heavy: a second

    number, width = reference.shape
    mean, reference = reference.double().mean(dim=0), reference.double()
    covariance = torch.cov(reference.T).reshape(width, width)
    covariance += torch.eye(width, dtype=torch.float64) * (_SMALLEST_SHARE * covariance.trace() / width + 1e-30)
    away = found.double() - mean
    squared = (away * torch.linalg.solve(covariance, away.T).T).sum(dim=1) * number / (number + 1)
    bound = width * (number - 1) / (number - width) * stats.f.ppf(1 - _LEVEL, width, number - width)
    found_outside: Tensor = squared > bound
    return found_outside


def _padded(one: Answered) -> Answered:
    text = padded(one.text, FILLER_TIMES * len(one.text))[0]
    return one.saying(text)
