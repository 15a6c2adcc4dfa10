"""Configuration of filter_prompts."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from containers.contracts.base import Difference, Fraction, Rows
from containers.contracts.configs.parts.row_filters import TextFilters

ColumnName = Annotated[str, Field(min_length=1, max_length=200)]


class FilterPromptsConfig(TextFilters):
    """Turn rows into prompts for the policy, each with its reference answer where it has one."""

    stage: Literal["filter_prompts"] = "filter_prompts"
    keep_columns: tuple[ColumnName, ...] = Field(
        (), description="Further columns of the rows, for reward functions of one's own"
    )
    min_difficulty: Difference | None = Field(
        None,
        description="Smallest `difficulty` to keep; POLARIS gives the share of attempts that were right, such as `3/8`",
    )
    max_difficulty: Difference | None = Field(None, description="Largest `difficulty` to keep")
    require_answer: bool | None = Field(
        None, description="Drop rows without a reference answer; null: where a reward compares with it"
    )
    evaluation_fraction: Fraction = Field(
        0.05, description="Share of prompts held out to judge the policy where the source has no validation file"
    )
    frozen_share: Fraction = Field(
        0.4, description="Share of the held-out prompts that only compares champions; 0: those that judge the policy do"
    )
    minimum_frozen_prompts: Rows = Field(
        50, ge=1, description="With fewer prompts the frozen part is not split off from those that judge the policy"
    )
    minimum_train_prompts: Rows = Field(2, ge=1, description="Fewer prompts than this to train on are an error")
    minimum_evaluation_prompts: Rows = Field(
        2, ge=2, description="Fewer prompts than this to judge the policy on are an error"
    )

    @model_validator(mode="after")
    def _difficulties_are_in_order(self) -> Self:
        low, high = self.min_difficulty, self.max_difficulty
        if low is not None and high is not None and low > high:
            raise ValueError(f"min_difficulty {low:g} is above max_difficulty {high:g}, so no row would be kept.")
        return self
