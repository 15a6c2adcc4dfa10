"""Champion and challenger: how they compare, and what a retraining decided. The report shows it."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.outcome import Metric

# Beside the report, and the report's input of that name; only a retraining has them.
DECISIONS_FILE = "decisions.json"
DECISIONS_INPUT = "decisions"

DecisionKind = Literal["first", "won", "lost", "same", "refused", "promoted", "rolled_back"]


class Contest(Frozen):
    """Champion and challenger on the same items; each item gives both a value from 0 to 1."""

    name: str = Field(description="The frozen set, or a pair file")
    measure: Literal["accuracy", "win rate"]
    count: int = Field(ge=0, description="Items that both were judged on")
    seen_in_training: int = Field(0, ge=0, description="Left out: one of the two trained on the prompt")
    not_in_both: int = Field(0, ge=0, description="Left out: one of the two could not be judged on it, as too long")
    champion: float | None = Field(None, description="null where no item was left")
    challenger: float | None = None
    difference: Metric | None = Field(None, description="Challenger minus champion, paired bootstrap interval")
    num_better: int = Field(0, ge=0, description="Prompts on which only the challenger is right, or wins")
    num_worse: int = Field(0, ge=0)
    p_value: float = Field(1.0, ge=0, le=1, description="McNemar's exact test on the two numbers, two-sided")
    budget: float | None = Field(None, description="How far the challenger may fall here; null: it must win here")

    @property
    def regresses(self) -> bool:
        """Whether the challenger falls further than its budget allows."""
        return self.budget is not None and self.difference is not None and self.difference.value < -self.budget


class Comparison(Frozen):
    """The challenger against the champion, on the frozen set first and then on every pair file."""

    champion: int
    challenger: int
    contests: tuple[Contest, ...]
    confidence: float
    alpha: float


class RunDecision(Frozen):
    """What one run decided about its challenger, as its report tells it."""

    model: str = Field(description="Name of the line of champions, and of the registered model in MLflow")
    model_kind: Literal["reward_model", "policy"]
    at: str = Field(description="UTC, ISO 8601")
    kind: DecisionKind
    text: str = Field(description="Why, with figures")
    challenger: int | None = Field(None, description="null: it was refused before it got a number")
    champion_before: int | None = None
    champion_after: int | None = None
    comparison: Comparison | None = Field(None, description="null: nothing was compared")
    registry: str = Field("", description="What MLflow shows under the alias, in a sentence")


class RunDecisions(Frozen):
    """`decisions.json` beside the report of a retraining, in the order in which they were made."""

    decisions: tuple[RunDecision, ...] = ()
