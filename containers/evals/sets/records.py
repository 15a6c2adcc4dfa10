"""`sets_evaluation.json`: the models of a run on standard sets, side by side."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.outcome import Metric
from containers.contracts.records import JudgeFigures

# before: the model before supervised fine-tuning, of a run that has it; start: the model that the policy started from.
SetModel = Literal["before", "start", "policy"]
MODEL_NAMES: dict[SetModel, str] = {"before": "Before fine-tuning", "start": "Start model", "policy": "Policy"}
# The same within a sentence.
MODEL_WORDS: dict[SetModel, str] = {
    "before": "the model before fine-tuning",
    "start": "the start model",
    "policy": "the policy",
}


class ModelScore(Frozen):
    """One model on one set."""

    model: SetModel
    score: Metric = Field(description="Share of right answers, over items")
    pass_at: tuple[Metric, ...] = Field((), description="pass@k, where each item has several answers")
    ended: Metric = Field(description="Share of answers that ended by themselves; the others were cut off")


class ModelDifference(Frozen):
    """Two models on the same items, second minus first."""

    second: SetModel
    first: SetModel
    difference: Metric = Field(description="Paired t interval over prompts")
    num_better: int = Field(ge=0, description="Prompts on which the second model is better")
    num_worse: int = Field(ge=0)
    p_value: float = Field(ge=0, le=1, description="McNemar's exact test on the two numbers, two-sided")
    detectable: float = Field(description="Smallest true difference that these items show in 80 % of cases; estimated")


class SetPart(Frozen):
    """A part of a set: the share of right answers of each model, in the order of the models."""

    name: str
    num_items: int = Field(ge=1)
    scores: tuple[float, ...]


class SetSample(Frozen):
    """An item on which start model and policy differ."""

    prompt: str
    wanted: str = Field("", description="The reference answer; empty: the rule has none")
    start: str
    policy: str


class SetResult(Frozen):
    """One set: how many of its rows were used, and the figures of each model."""

    name: str
    kind: str
    title: str
    measure: str
    source: str
    origin: str = ""
    rows_read: int = Field(ge=0)
    left_out_because: tuple[tuple[str, int], ...] = ()
    left_out_examples: tuple[str, ...] = ()
    num_over_long: int = Field(0, ge=0)
    num_items: int = Field(ge=0, description="Items that were answered, of those drawn")
    answers_per_item: int = Field(1, ge=1)
    untold: tuple[tuple[str, int], ...] = Field((), description="Items that the rule could not tell about, by reason")
    scores: tuple[ModelScore, ...] = Field((), description="In the order of the models; empty for chats")
    differences: tuple[ModelDifference, ...] = ()
    parts: tuple[SetPart, ...] = ()
    lost: tuple[SetSample, ...] = Field((), description="Right by the start model, wrong by the policy")
    won: tuple[SetSample, ...] = ()
    judges: tuple[JudgeFigures, ...] = Field((), description="Of chats: policy against start model, by each judge")

    def difference(self, second: SetModel, first: SetModel) -> ModelDifference | None:
        """The difference of those models; None where one of them has no answers, or nothing could be told."""
        return next((one for one in self.differences if (one.second, one.first) == (second, first)), None)


class SetsEvaluation(Frozen):
    """All sets of a run."""

    models: tuple[SetModel, ...]
    confidence: float
    sets: tuple[SetResult, ...]
