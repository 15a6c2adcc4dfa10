"""The reward of a completion in training: all terms together, less penalties for its length and its end."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.rewards.base import Answered, SeveralRewards, StartedTerm
from containers.rewards.combine import CombinedRewards, combined
from containers.rollouts.generate import Completion

# Of completions that no term could tell about, each reason's name is at most this long.
_REASON_CHARACTERS = 120
_MOST_REASONS, _SHOWN_REASONS, _OTHER_REASONS = 100, 5, "other reasons"


@dataclass(frozen=True, slots=True)
class Scored:
    """What the terms say about one completion.

    Attributes:
        values: by name of the term, as its curve shows it; NaN where it cannot tell.
        rewards: the same as rewards.
        reasons: why terms cannot tell.
        disagreement: standard deviation of the rewards of several reward models; None where there is one, or none.
    """

    values: Mapping[str, float]
    rewards: Mapping[str, float]
    reasons: tuple[str, ...] = ()
    disagreement: float | None = None


@dataclass
class RunningScale:
    """Mean and spread of all values so far (Welford's sums).

    Example: after 1, 2 and 3, the value 3 is (3 - 2) / 1 = 1.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def spread(self) -> float:
        """Standard deviation, with N - 1; 0 below two values."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    def scaled(self, values: Tensor) -> Tensor:
        """Take in [R] values (NaN: none), and return them less the mean, divided by the standard deviation."""
        for value in values[~values.isnan()].tolist():
            self.count += 1
            before = value - self.mean
            self.mean += before / self.count
            self.squares += before * (value - self.mean)
        return (values - self.mean) / self.spread if self.spread > 0 else values - values


@dataclass
class PolicyReward:
    """Rewards completions by the terms of a configuration.

    Attributes:
        scales: of the terms that are normalised by all values so far; a checkpoint has them.
        unscorable: completions that a term could not tell about, by reason; a checkpoint has them.
    """

    started: Sequence[StartedTerm]
    config: TrainPolicyConfig
    scales: dict[str, RunningScale] = field(default_factory=dict)
    unscorable: Counter[str] = field(default_factory=Counter)

    def scored(self, answered: Sequence[Answered]) -> list[Scored]:
        """Return what the terms say about each completion, in order.

        Raises:
            DivergedError: a score of the reward model is not finite.
        """
        by_term = {one.term.name: one.scored(answered) for one in self.started}
        several = [one.reward.spreads for one in self.started if isinstance(one.reward, SeveralRewards)]
        return [
            Scored(
                values={name: values[place] for name, (values, _, _) in by_term.items()},
                rewards={name: rewards[place] for name, (_, rewards, _) in by_term.items()},
                reasons=tuple(
                    f"{name}: {reasons[place]}"[:_REASON_CHARACTERS]
                    for name, (_, _, reasons) in by_term.items()
                    if reasons[place]
                ),
                disagreement=several[0][place] if several else None,
            )
            for place in range(len(answered))
        ]

    def combined(self, scored: Sequence[Scored], completions: Sequence[Completion]) -> CombinedRewards:
        """Return the rewards of the completions of all ranks, the K of a prompt adjacent; the scales learn from them.

        Completions that were cut off do not take part if the configuration masks them.
        """
        rewards = {}
        for one in self.started:
            name = one.term.name
            own = torch.tensor([row.rewards[name] for row in scored], dtype=torch.float64)
            is_running = one.term.normalise == "running"
            rewards[name] = self.scales.setdefault(name, RunningScale()).scaled(own) if is_running else own
        for reason in (reason for row in scored for reason in row.reasons):
            # A function's own messages may all differ.
            is_known = reason in self.unscorable or len(self.unscorable) < _MOST_REASONS
            self.unscorable[reason if is_known else _OTHER_REASONS] += 1
        masks = self.config.mask_cut_off
        return combined(
            rewards,
            self.config.rewards,
            penalties=torch.tensor([self._penalty(completion) for completion in completions], dtype=torch.float64),
            masked=torch.tensor([masks and not completion.ended for completion in completions]),
            num_generations=self.config.num_generations,
        )

    def unscorable_text(self) -> str:
        """Say how many completions trained nothing since a term could not tell, by reason; empty if none did."""
        if not self.unscorable:
            return ""
        shown = "; ".join(f"{count:,}: {reason}" for reason, count in self.unscorable.most_common(_SHOWN_REASONS))
        return f"Values that completions lacked, so that they trained nothing: {self.unscorable.total():,} ({shown})."

    def rounding(self, scored: Sequence[Scored]) -> float:
        """Return up to which difference the rewards of these completions are alike but for rounding."""
        total = 0.0
        for one in self.started:
            values = [value for row in scored if not math.isnan(value := row.values[one.term.name])]
            scale = self.scales.get(one.term.name)
            spread = scale.spread if scale is not None and scale.spread > 0 else 1.0
            total += abs(one.term.weight) * one.reward.rounding(values) / spread
        return total

    def _penalty(self, completion: Completion) -> float:
        """Return what is subtracted; for the length as in Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13.

        Example: of at most 100 tokens, with a fraction of 0.2 and a penalty of 1, 90 tokens cost 0.5.
        """
        method, longest = self.config.method, self.config.max_completion_length
        found = 0.0 if completion.ended else self.config.missing_eos_penalty
        if method.overlong_penalty:
            room = method.overlong_fraction * longest
            into = len(completion.completion_ids) - (longest - room)
            found += method.overlong_penalty * min(max(into / room, 0.0), 1.0)
        return found

    def state(self) -> dict[str, Any]:
        """Return what a resumed training needs, as JSON values."""
        return {
            "scales": {name: vars(scale) for name, scale in self.scales.items()},
            "unscorable": dict(self.unscorable),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from that state."""
        self.scales = {name: RunningScale(**scale) for name, scale in state["scales"].items()}
        self.unscorable = Counter(state["unscorable"])
