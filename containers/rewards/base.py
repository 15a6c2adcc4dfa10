"""Rewards of completions; a reward starts by its configured name.

Each reward is its own module, with a `start` that takes the arguments of `start_reward`; the registry names it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.registries import REWARDS
from containers.harness.context import StageContext
from containers.harness.errors import DivergedError
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


class PolicyReward:
    """Reward function for TRL's RLOOTrainer, which subtracts beta × KL from its result.

    Args:
        end_ids: ids of the tokens that end a completion.
        missing_eos_penalty: subtracted if the completion does not end with one of them.
    """

    def __init__(self, reward: Reward, *, end_ids: Sequence[int], missing_eos_penalty: float) -> None:
        self._reward = reward
        self._end_ids = frozenset(end_ids)
        self._missing_eos_penalty = missing_eos_penalty

    def __call__(
        self,
        *,
        prompts: Prompts,
        completions: Completions,
        completion_ids: Sequence[Sequence[int]],
        trainer_state: Any,
        log_extra: Callable[[str, list[Any]], None],
        log_metric: Callable[[str, float], None],
        **columns: Any,
    ) -> list[float]:
        """Return one reward per completion, in order; `columns`, the dataset's further columns, are not used.

        Args:
            prompts: P * K conversations; the K completions of a prompt are adjacent.
            completions: for each prompt one assistant message.
            completion_ids: token ids of each completion, with the ending token if it ended.

        Raises:
            DivergedError: a score is not finite; names the step.

        Example: a completion that was cut off, of score 0.5, with a penalty of 1.0 has the reward -0.5.
        """
        try:
            scores = self._reward.scores(prompts, completions)
        except DivergedError as error:
            raise DivergedError(f"Step {trainer_state.global_step + 1}: {error}") from error
        ended = [bool(ids) and ids[-1] in self._end_ids for ids in completion_ids]
        log_extra("score", list(scores))
        log_extra("ended", ended)
        log_extra("num_tokens", [len(ids) for ids in completion_ids])
        log_metric("score", sum(scores) / len(scores))
        log_metric("ended_fraction", sum(ended) / len(ended))
        rewards = self._reward.rewards(scores)
        return [
            reward if done else reward - self._missing_eos_penalty for reward, done in zip(rewards, ended, strict=True)
        ]
