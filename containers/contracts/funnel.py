"""What a filter did with the rows, `funnel.json`: counts of each step, and what the checks found."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen


class LabelAgreement(Frozen):
    """How often the labels of a source agree with another judge; undecided where its interval holds one half."""

    source: str
    num_judged: int = Field(ge=1)
    num_agreeing: int = Field(ge=0)
    agreement: float = Field(ge=0, le=1)
    low: float = Field(ge=0, le=1, description="Lower end of the interval of the agreement, over prompts")
    high: float = Field(ge=0, le=1)
    confidence: float = Field(gt=0, lt=1)

    @property
    def says_nothing(self) -> bool:
        """Whether the interval holds one half, so that the labels may point either way."""
        return self.low <= 0.5 <= self.high

    @property
    def is_inverted(self) -> bool:
        """Whether the whole interval is below one half, so that the labels most likely choose the worse response."""
        return self.high < 0.5


class ReferenceCheck(LabelAgreement):
    """The agreement with a reference reward model, on a sample of the pairs of a source.

    `num_judged` counts pairs scored on both sides, `num_agreeing` those whose chosen response has the higher score.
    """

    model: str
    num_equal: int = Field(0, ge=0, description="Both responses have the same score; half of them count as agreeing")
    num_over_long: int = Field(0, ge=0, description="Pairs of the sample that were too long to be scored")
    num_unscorable: int = Field(
        0, ge=0, description="Pairs that the model's chat template refuses, or with a token without embedding row"
    )


class FunnelStep(Frozen):
    """One filter: rows in, rows out, and the rows dropped under this reason."""

    reason: str
    rows_in: int = Field(ge=0)
    rows_out: int = Field(ge=0)
    dropped_by_domain: tuple[tuple[str, int], ...] = ()
    dropped_by_language: tuple[tuple[str, int], ...] = ()
    dropped_by_strength: tuple[tuple[str, int], ...] = Field((), description="0 is a tie; `unknown` where malformed")
    dropped_by_source: tuple[tuple[str, int], ...] = ()
    examples: tuple[str, ...] = Field((), description="`file:line: what was seen`, at most five, shortened")

    @property
    def dropped(self) -> int:
        """Rows dropped under this reason."""
        return self.rows_in - self.rows_out


class PolarityCheck(LabelAgreement):
    """The agreement with the mean of the scores in the same rows; rows in which both prefer a response are judged."""


class SuiteContamination(Frozen):
    """How much of a suite was found among the rows; several items may have the same prompt."""

    suite: str
    num_prompts: int = Field(0, ge=0, description="Distinct prompts; 0 in records of earlier versions")
    num_prompts_found: int = Field(0, ge=0)
    num_items: int = Field(ge=0)
    num_items_found: int = Field(ge=0)
    num_rows: int = Field(ge=0, description="Rows with a prompt of the suite")


class ValidationPart(Frozen):
    """A part of the validation pairs, by its purpose."""

    name: Literal["tune", "test", "frozen"]
    num_pairs: int = Field(ge=0)
    num_prompts: int = Field(ge=0)
    is_test: bool = Field(description="The test part itself, or not split off from it")
    share: float | None = Field(
        None, ge=0, description="Configured share of it; 0: not split off by configuration; null: not recorded"
    )

    @property
    def why_test(self) -> str:
        """Why it is the test part, as a clause: by the configuration, or for want of prompts."""
        if self.share == 0:
            return f"filter_dataset.validation_parts.{self.name} is 0"
        return "too few prompts are held out for a part of its own"


class Funnel(Frozen):
    """`funnel.json`: how many rows each filter kept and dropped. kept + dropped = read.

    Of filter_dataset, filter_prompts or filter_demonstrations.
    """

    sources: tuple[str, ...]
    rows_read: int = Field(ge=0)
    steps: tuple[FunnelStep, ...]
    train_pairs: int = Field(0, ge=0)
    validation_pairs: int = Field(0, ge=0)
    validation_parts: tuple[ValidationPart, ...] = ()
    policy_train_prompts: int = Field(0, ge=0)
    policy_eval_prompts: int = Field(0, ge=0)
    policy_frozen_prompts: int = Field(0, ge=0, description="They compare champions; of filter_prompts only")
    kind: Literal["pairs", "prompts", "demonstrations"] = Field("pairs", description="What the rows hold")
    train_demonstrations: int = Field(0, ge=0, description="Conversations to fine-tune on")
    validation_demonstrations: int = Field(0, ge=0, description="Conversations that choose a checkpoint")
    num_answers: int = Field(0, ge=0, description="Answers in all conversations kept")
    num_with_answer: int = Field(0, ge=0, description="Prompts kept that have a reference answer")
    pairs_set_aside_for_policy: int = Field(
        0, ge=0, description="Good pairs whose prompt went to the policy; they train no reward model"
    )
    kept_by_domain: tuple[tuple[str, int], ...] = ()
    kept_by_strength: tuple[tuple[int, int], ...] = ()
    read_by_domain: tuple[tuple[str, int], ...] = ()
    read_by_language: tuple[tuple[str, int], ...] = ()
    read_by_strength: tuple[tuple[str, int], ...] = ()
    read_by_source: tuple[tuple[str, int], ...] = ()
    train_by_source: tuple[tuple[str, int], ...] = Field((), description="Training rows of each source")
    polarity: tuple[PolarityCheck, ...] = Field((), description="Of sources that have such scores")
    reference: tuple[ReferenceCheck, ...] = Field((), description="Where a reference reward model judged the labels")
    num_near_duplicates: int | None = Field(None, ge=0, description="Dropped or only reported; null: not looked for")
    num_similar_prompts: int | None = Field(
        None, ge=0, description="Prompts that resemble another one, kept together or dropped; null: not looked for"
    )
    contamination: tuple[SuiteContamination, ...] = Field((), description="Empty where it was not looked for")
    language_detector: str = ""
