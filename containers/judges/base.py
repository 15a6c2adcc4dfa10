"""Judges compare two completions of a prompt; each judge of a configuration starts the one that its type names."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.judges import Judge
from containers.contracts.registries import JUDGES
from containers.harness.context import StageContext
from containers.rewards.base import Answered


@dataclass(frozen=True)
class Pair:
    """What the policy and its reference wrote on one prompt."""

    policy: Answered
    reference: Answered

    @property
    def prompt_is(self) -> tuple[tuple[str, str], ...]:
        """The turns of the prompt."""
        return tuple((turn["role"], turn["content"]) for turn in self.policy.conversation)

    @property
    def is_same_text(self) -> bool:
        """Whether both wrote the same."""
        return self.policy.text == self.reference.text


@dataclass(frozen=True)
class Verdict:
    """What a judge says of a pair.

    Attributes:
        points: 1 if the policy's completion is better, 0 if the reference's, 0.5 for a tie; None: it could not tell.
        reason: why it could not tell.
        values: of a judge that gives each completion a value: the policy's and the reference's.
    """

    points: float | None
    reason: str = ""
    values: tuple[float, float] | None = None


class StartedJudge(ABC):
    """Compares pairs, and says who it is."""

    @abstractmethod
    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return what it says of each pair."""

    @abstractmethod
    def shown(self) -> str:
        """Return who judges, in one line for people."""

    def part_in_training(self) -> str:
        """Return what it had to do with the training, as a clause; empty: nothing that is known."""
        return ""

    def close(self) -> None:  # noqa: B027 - it need not
        """End what this judge started."""


def start_judge(context: StageContext, config: EvaluatePolicyConfig, judge: Judge) -> StartedJudge:
    """Start the judge.

    Raises:
        MissingPrerequisiteError: an input of the judge is missing.
        BadConfigError: it cannot judge completions of this configuration.
    """
    started: StartedJudge = JUDGES[judge.type](context, config, judge)
    return started
