"""Configuration of filter_demonstrations."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Fraction, Rows
from containers.contracts.configs.parts.row_filters import TextFilters


class FilterDemonstrationsConfig(TextFilters):
    """Turn rows into conversations to fine-tune on; none has a prompt that judges a model of the run."""

    stage: Literal["filter_demonstrations"] = "filter_demonstrations"
    validation_fraction: Fraction = Field(
        0.05, description="Share of prompts held out to choose a checkpoint where the source has no validation file"
    )
    minimum_train_rows: Rows = Field(2, ge=1, description="Fewer training conversations than this are an error")
    minimum_validation_rows: Rows = Field(1, ge=1, description="Fewer validation conversations than this are an error")
