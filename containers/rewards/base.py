"""Rewards of completions; each term of a configuration's `rewards` starts the reward that its type names.

Each reward is its own module, with a `start` that takes the stage's context and configuration and its own term; the
registry names it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.rewards import RewardTerm
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.registries import REWARDS
from containers.harness.context import StageContext
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompt, PolicyPrompts

# The stages whose configuration has rewards.
Rewarding: TypeAlias = TrainPolicyConfig | EvaluatePolicyConfig


@dataclass(frozen=True)
class Answered:
    """A prompt with one completion, as a reward sees it.

    Attributes:
        conversation: the turns of the prompt.
        opening: what the chat template wrote for the policy after the prompt, such as `<think>`.
        answer: the prompt's reference answer, if it has one.
        other_answers: further answers that are right too.
        columns: further columns of the prompt's row.
    """

    conversation: Sequence[Mapping[str, str]]
    completion: Completion
    opening: str = ""
    answer: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    other_answers: tuple[str, ...] = ()

    @classmethod
    def of(cls, prompt: PolicyPrompt, completion: Completion, *, opening: str) -> "Answered":
        """Return the prompt with that completion."""
        return cls(prompt.conversation, completion, opening, prompt.answer, prompt.columns, prompt.other_answers)

    def saying(self, text: str) -> "Answered":
        """Return the same prompt with another text as its completion, which has no tokens of its own."""
        return replace(self, completion=replace(self.completion, text=text))

    @property
    def accepted(self) -> tuple[str, ...]:
        """Every answer that is right; empty if the prompt has no reference answer."""
        return (self.answer, *self.other_answers) if self.answer else ()

    @property
    def text(self) -> str:
        """The text of the completion, without special tokens."""
        return self.completion.text


@dataclass(frozen=True)
class NoValue:
    """Why a reward cannot tell; such a completion trains nothing, and is counted by this text."""

    reason: str


Value: TypeAlias = float | NoValue


class Reward(ABC):
    """Gives completions values, and turns them into rewards."""

    @abstractmethod
    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return the value of each completion, as the term's curve shows it, or why it has none."""

    def rewards(self, values: Sequence[float]) -> list[float]:
        """Return the reward of each value; the value itself unless a subclass overrides this."""
        return list(values)

    def rounding(self, values: Sequence[float]) -> float:
        """Return up to which difference rewards of these values are alike but for rounding, and so no signal."""
        return 0.0

    def scorable(self, context: StageContext, prompts: PolicyPrompts) -> PolicyPrompts:
        """Return the prompts whose completions can have a value, with a text about those left out."""
        return prompts

    def on_base(self, base: Any) -> None:  # noqa: B027 - it need not
        """Take what this reward can share of the start model, before that gets adapters; called once in training.

        Args:
            base: the start model with the tensors that stay frozen.
        """

    def offload(self) -> int:
        """Keep models of its own in host memory while they are not used; return their bytes."""
        return 0

    def record(self, context: StageContext) -> None:  # noqa: B027 - it need not
        """Write a description of this reward for the report; called by the first rank."""

    def close(self) -> None:  # noqa: B027 - it need not
        """End what this reward started."""


class StateReward(Reward):
    """A reward by a model's score, which is computed from one state of the model for each conversation."""

    @abstractmethod
    def fits(self, answered: Answered) -> bool:
        """Whether the model can score the whole conversation."""

    @abstractmethod
    def scored(self, answered: Sequence[Answered]) -> list[float]:
        """Return the score of each completion."""

    @abstractmethod
    def states(self, answered: Sequence[Answered]) -> Any:
        """Return the states to which the score head is applied: a tensor [N, hidden], float32 on the CPU."""


class SeveralRewards(Reward):
    """Several rewards that give one value together; a policy is judged by each of them too."""

    members: Sequence[Reward]
    # Of the newest `values`: how far the members' rewards of each completion are apart, a standard deviation.
    spreads: Sequence[float] = ()

    @abstractmethod
    def together(self, of_members: Sequence[Sequence[float]]) -> list[float]:
        """Return the value of each completion; `of_members` is [members][completions], what each rewards."""


@dataclass(frozen=True)
class StartedTerm:
    """A term with its reward."""

    term: RewardTerm
    reward: Reward

    def scored(self, answered: Sequence[Answered]) -> tuple[list[float], list[float], list[str]]:
        """Return the value, the reward and the reason of each completion; NaN where it cannot tell, else no reason."""
        found = self.reward.values(answered)
        known = [place for place, value in enumerate(found) if not isinstance(value, NoValue)]
        numbers = [value for value in found if not isinstance(value, NoValue)]
        values, rewards = [math.nan] * len(found), [math.nan] * len(found)
        for place, value, reward in zip(known, numbers, self.reward.rewards(numbers), strict=True):
            values[place], rewards[place] = value, reward
        return values, rewards, [value.reason if isinstance(value, NoValue) else "" for value in found]


def start_rewards(context: StageContext, config: Rewarding) -> tuple[StartedTerm, ...]:
    """Start the reward of each term; if one cannot start, those before it are closed.

    Raises:
        MissingPrerequisiteError: an input of a reward is missing.
        BadConfigError: a reward cannot score completions of this configuration.
    """
    started: list[StartedTerm] = []
    try:
        for term in config.rewards:
            started.append(StartedTerm(term, REWARDS[term.type](context, config, term)))
    except BaseException:
        close_rewards(started)
        raise
    return tuple(started)


def close_rewards(started: Sequence[StartedTerm]) -> None:
    """End what the rewards started."""
    for one in started:
        one.reward.close()
