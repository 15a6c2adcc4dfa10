"""Rewards of completions; a reward starts by its configured name.

Each reward is its own module, with a `start` that takes the arguments of `start_reward`; the registry names it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.registries import REWARDS
from containers.harness.context import StageContext
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompts

# P * K each, in order: the turns of a prompt, and one assistant message.
Prompts: TypeAlias = Sequence[Sequence[Mapping[str, str]]]
Completions: TypeAlias = Sequence[Sequence[Mapping[str, str]]]


class Reward(ABC):
    """Scores completions, and turns the scores into rewards."""

    @abstractmethod
    def scores(self, prompts: Prompts, completions: Completions) -> list[float]:
        """Return the score of each completion, as the score curve shows it."""

    def rewards(self, scores: Sequence[float]) -> list[float]:
        """Return the reward of each score; the score itself unless a subclass overrides this."""
        return list(scores)

    def rounding(self, scores: Sequence[float]) -> float:
        """Return up to which difference rewards of these scores are alike but for rounding, and so no signal."""
        return 0.0

    def scorable(self, context: StageContext, prompts: PolicyPrompts) -> PolicyPrompts:
        """Return the prompts whose completions can be scored, with a text about those left out."""
        return prompts

    def record(self, context: StageContext) -> None:  # noqa: B027 - it need not
        """Write a description of this reward for the report; called by the first rank."""


def start_reward(context: StageContext, config: TrainPolicyConfig) -> Reward:
    """Load the configured reward.

    Raises:
        MissingPrerequisiteError: an input of the reward is missing.
        BadConfigError: the reward cannot score completions of this configuration.
    """
    started: Reward = REWARDS[config.reward](context, config)
    return started


@dataclass(frozen=True)
class PolicyReward:
    """Reward of a completion in training: the configured reward, less penalties for its length and its end.

    Attributes:
        longest: maximum tokens of a completion.
        missing_eos_penalty: subtracted if the completion was cut off.
        overlong_fraction: the share of `longest` in which the reward falls by up to `overlong_penalty`.
    """

    reward: Reward
    longest: int
    missing_eos_penalty: float = 0.0
    overlong_fraction: float = 0.0
    overlong_penalty: float = 0.0

    def of(self, prompts: Prompts, completions: Sequence[Completion]) -> tuple[list[float], list[float]]:
        """Return the score and the reward of each completion, in order.

        Raises:
            DivergedError: a score is not finite.

        Example: a completion that was cut off, of score 0.5, with a penalty of 1.0 has the reward -0.5.
        """
        replies = [[{"role": "assistant", "content": completion.text}] for completion in completions]
        scores = self.reward.scores(prompts, replies)
        pairs = zip(self.reward.rewards(scores), completions, strict=True)
        return scores, [reward - self._penalty(completion) for reward, completion in pairs]

    def _penalty(self, completion: Completion) -> float:
        """Return what is subtracted; for the length as in Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13.

        Example: of at most 100 tokens, with a fraction of 0.2 and a penalty of 1, 90 tokens cost 0.5.
        """
        found = 0.0 if completion.ended else self.missing_eos_penalty
        if self.overlong_penalty:
            room = self.overlong_fraction * self.longest
            into = len(completion.completion_ids) - (self.longest - room)
            found += self.overlong_penalty * min(max(into / room, 0.0), 1.0)
        return found
