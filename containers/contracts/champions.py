"""Champion and challenger: their comparison, and the decision of a retraining. The report shows both."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.outcome import Metric

# The file beside the report, and the name of the report's input; only a retraining has them.
DECISIONS_FILE = "decisions.json"
DECISIONS_INPUT = "decisions"

# held: it won by the scores of its own teacher, or of a reward model of its own pairs, so a person decides.
DecisionKind = Literal["first", "won", "held", "lost", "same", "refused", "promoted", "rolled_back"]


class Contest(Frozen):
    """Champion and challenger on the same items; each item gives each model a value from 0 to 1."""

    name: str = Field(description="The frozen set, a suite, or all suites together")
    measure: Literal["accuracy", "win rate", "score"] = Field(description="score: the suite's own rule")
    count: int = Field(ge=0, description="Items on which both were judged")
    num_prompts: int = Field(0, ge=0, description="Different prompts among them; intervals are over prompts")
    seen_in_training: int = Field(
        0, ge=0, description="Left out: one of the two trained on the prompt, or on one like it"
    )
    not_in_both: int = Field(0, ge=0, description="Left out: the item was too long for one of the two")
    champion: float | None = Field(None, description="null where no item was left")
    challenger: float | None = None
    difference: Metric | None = Field(None, description="Challenger minus champion, paired t interval")
    num_better: int = Field(0, ge=0, description="Prompts on which only the challenger is right, or wins")
    num_worse: int = Field(0, ge=0)
    p_value: float = Field(1.0, ge=0, le=1, description="McNemar's exact test on the two numbers, two-sided")
    detectable: float | None = Field(
        None,
        description="Smallest true difference that these items show with a probability of 80 %; where a drop must be "
        "ruled out, the smallest budget that they rule out so often between equal models; estimated",
    )
    budget: float | None = Field(None, description="Largest allowed drop of the challenger here; null: it must win")
    at_most: float | None = Field(
        None, description="Upper end of the difference, one-sided, at `alpha` over the number of suites"
    )
    at_least: float | None = Field(None, description="Lower end of the difference, one-sided, at `alpha`")
    must_rule_out: bool = Field(False, description="Whether a drop beyond the budget must be ruled out here")

    @property
    def regresses(self) -> bool:
        """Whether the challenger drops by more than its budget beyond chance, or that was to be ruled out and is not.

        Without a common item nothing is known: that stops the challenger only where a drop must be ruled out.
        """
        if self.budget is None:
            return False
        if self.must_rule_out:
            return self.at_least is None or self.at_least < -self.budget
        return self.at_most is not None and self.at_most < -self.budget


class Comparison(Frozen):
    """The challenger against the champion: the frozen set first, then every suite, then all suites together."""

    champion: int
    challenger: int
    contests: tuple[Contest, ...]
    confidence: float
    alpha: float
    judged_by_teacher: bool = Field(
        False,
        description="The scores are of the reward model that the challenger was trained against; with "
        "`trained_on_pairs`, of one that may have learned from the same pairs",
    )
    trained_on_pairs: bool = Field(False, description="The challenger was trained on pairs, against no reward model")
    notes: tuple[str, ...] = Field((), description="What else to know about the comparison, a sentence each")


class RunDecision(Frozen):
    """The decision of one run about its challenger, as its report shows it."""

    model: str = Field(description="Name of the line of champions, and of the registered model in MLflow")
    model_kind: Literal["reward_model", "policy"]
    at: str = Field(description="UTC, ISO 8601")
    kind: DecisionKind
    text: str = Field(description="Why, with figures")
    challenger: int | None = Field(None, description="null: refused before it got a number")
    champion_before: int | None = None
    champion_after: int | None = None
    comparison: Comparison | None = Field(None, description="null: nothing was compared")
    registry: str = Field("", description="What MLflow shows under the alias, in a sentence")


class RunDecisions(Frozen):
    """`decisions.json` beside the report of a retraining: its decisions in their order."""

    decisions: tuple[RunDecision, ...] = ()
