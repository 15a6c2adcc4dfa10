"""Judges compare two completions of a prompt; each judge of a configuration starts the one that its type names."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.judges import Judge
from containers.contracts.records import PeopleFigures
from containers.contracts.registries import JUDGES
from containers.formatting import percent
from containers.harness.context import StageContext
from containers.rewards.base import Answered, Rewarding, Value

# A judge that chooses one place in more than this share of its choices judges places.
_MOST_BIASED = 0.75
# Fewer choices say nothing about places.
_FEWEST = 8


@dataclass(frozen=True)
class Places:
    """How much the place of an answer decided.

    Attributes:
        num_choices: choices of one of two answers, in either order.
        first_share: share of them that is the answer shown first; 0.5 for a judge that looks at answers.
        agreement: share of pairs with the same answer in both orders; None: each was shown in one.
    """

    num_choices: int
    first_share: float
    agreement: float | None

    @property
    def problem(self) -> str:
        """Why it judges places and no answers; empty: it does not."""
        most = max(self.first_share, 1 - self.first_share)
        if self.num_choices < _FEWEST or most <= _MOST_BIASED:
            return ""
        place = "first" if self.first_share > 0.5 else "second"
        return f"it chose the {place} answer in {percent(most)} of its choices, whatever it was"


@dataclass(frozen=True)
class Pair:
    """What the policy and its reference wrote on one prompt."""

    policy: Answered
    reference: Answered

    @property
    def in_both_orders(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Both texts, with the policy's first, and with the reference's first."""
        return (self.policy.text, self.reference.text), (self.reference.text, self.policy.text)

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
        was_asked: false for a pair that the judge was not to judge.
    """

    points: float | None
    reason: str = ""
    values: tuple[float, float] | None = None
    was_asked: bool = True


class StartedJudge(ABC):
    """Compares pairs, and says who it is.

    Attributes:
        is_elsewhere: no stage reaches it. It sees all pairs at once, and may raise JudgeAwaitedError.
    """

    is_elsewhere = False

    @abstractmethod
    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return what it says of each pair."""

    def values(self, answered: Sequence[Answered]) -> list[Value] | None:
        """Return the value of each completion, of a judge by which higher ones are better; None: it sees pairs only."""
        return None

    @abstractmethod
    def shown(self) -> str:
        """Return who judges, in one line for people."""

    def part_in_training(self) -> str:
        """Return what it had to do with the training, as a clause; empty: nothing that is known."""
        return ""

    def places(self) -> Places | None:
        """Return how much the order decided, once it has judged; None for one that sees no order."""
        return None

    def people(self) -> PeopleFigures | None:
        """Return who judged, of a judge that is people."""
        return None

    def close(self) -> None:  # noqa: B027 - it need not
        """End what this judge started."""


def rows_at_a_time(context: StageContext, config: Rewarding) -> int:
    """Return how many rows a judge that is a model may compute at a time."""
    return config.batch_size if isinstance(config, EvaluatePolicyConfig) else context.spec.batch.per_device_batch_size


def trained_by_rewards(config: Rewarding) -> bool:
    """Return whether the configured rewards trained the policy that is judged."""
    return config.rewards_trained_it if isinstance(config, EvaluatePolicyConfig) else True


def start_judge(context: StageContext, config: Rewarding, judge: Judge) -> StartedJudge:
    """Start the judge, of a finished policy or of one in training.

    Raises:
        MissingPrerequisiteError: an input of the judge is missing.
        BadConfigError: it cannot judge completions of this configuration.
    """
    started: StartedJudge = JUDGES[judge.type](context, config, judge)
    return started
