"""What filter_dataset found out about labels by a reference reward model; part of `funnel.json`."""

from pydantic import Field

from containers.contracts.base import Frozen


class ReferenceCheck(Frozen):
    """How often the label of a source agrees with a reference reward model, on a sample of its pairs."""

    source: str
    model: str
    num_judged: int = Field(ge=1, description="Pairs scored on both sides")
    num_agreeing: int = Field(ge=0, description="The chosen response has the higher score")
    num_equal: int = Field(0, ge=0, description="Both responses have the same score; half of them count as agreeing")
    num_over_long: int = Field(0, ge=0, description="Pairs of the sample that were too long to be scored")
    num_unscorable: int = Field(
        0, ge=0, description="Pairs that the model's chat template refuses, or with a token that it has no row for"
    )
    agreement: float = Field(ge=0, le=1)
    low: float = Field(ge=0, le=1, description="Lower end of the interval of the agreement")
    high: float = Field(ge=0, le=1)
    confidence: float = Field(gt=0, lt=1)

    @property
    def says_nothing(self) -> bool:
        """Whether the interval holds one half, so that the labels may point either way."""
        return self.low <= 0.5 <= self.high
