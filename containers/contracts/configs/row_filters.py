"""The filters that preference rows and prompts have in common."""

from typing import Literal

from pydantic import Field, field_validator

from containers.contracts.base import Fraction, Frozen, Name, Positive, Rows
from containers.contracts.configs.row_reading import RowReading

# The place of a row's text in `prompt_template`.
PROMPT_PLACE = "{prompt}"


class SourceShare(Frozen):
    """A source of a mixture by its name, its weight among the training rows, and how its rows are read."""

    name: Name = Field(description="As in the run's mixture")
    weight: Positive | None = Field(None, description="Against the other sources' weights; null: all its rows")
    reading: RowReading = Field(RowReading(), description="As the source's keys in the mixture say")


class HeldOutSuite(Frozen):
    """Data that will judge a model, so no model must train on it."""

    name: Name = Field(description="As in evaluate_reward_model.suites")
    benchmark: str = Field(min_length=1, description="How its rows are read")


class RowFilters(Frozen):
    """Filters of rows that have a prompt. Every dropped row is counted under one named reason."""

    languages: tuple[str, ...] = Field(
        ("english",), min_length=1, description="Values of the `language` column to keep; HelpSteer3 says `english`"
    )
    check_language_on_text: bool = Field(True, description="Also detect the language of the text itself")
    code_rows: Literal["keep", "drop"] = Field(
        "drop",
        description="Code rows have a programming language in `language`: `keep` judges them by the language of their "
        "prose, `drop` drops and counts them",
    )
    max_malformed_fraction: Fraction = Field(0.01, description="More malformed rows than this fail the stage")
    near_duplicates: Literal["drop", "report", "off"] = Field(
        "drop", description="Rows that nearly repeat an earlier one in every part; `report` lists and keeps them"
    )
    near_duplicate_similarity: float = Field(
        0.9,
        ge=0.5,
        le=1,
        description="Share of common five-word runs (Jaccard) that every part must reach: prompt, chosen and rejected",
    )
    similar_prompts: Literal["drop", "report", "off"] = Field(
        "drop",
        description="Training rows with a prompt like a held-out prompt (one letter differs, the same conversation, "
        "or most of it); every split keeps such prompts on one side. `report` lists and keeps them, splits by prompt",
    )
    similar_prompt_overlap: float = Field(
        0.9,
        gt=0.5,
        le=1,
        description="Share of a prompt's words, in eight-word runs, that another one must repeat; half is enough to be "
        "kept together where no validation file is given",
    )
    contamination: Literal["drop", "report", "off"] = Field(
        "drop",
        description="Rows whose prompt is in a suite of evaluate_reward_model; `report` lists and keeps them",
    )
    contamination_overlap: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of a suite's prompt, in eight-word runs, that a row's prompt must repeat, unless it quotes "
        "it whole",
    )
    max_rows: Rows | None = Field(
        None, ge=1, description="Take a seeded sample of this many surviving training rows; null: all"
    )
    mixture: tuple[SourceShare, ...] = Field(
        (), description="Leave it out: the run puts the names and weights of its mixture here"
    )
    reading: RowReading = Field(RowReading(), description="Leave it out: the run puts the keys of a single source here")
    suites: tuple[HeldOutSuite, ...] = Field(
        (), description="Leave it out: the run puts evaluate_reward_model.suites here"
    )


class TextFilters(RowFilters):
    """Filters of rows that are no pairs, and what their turns become."""

    max_characters: Rows = Field(32_000, ge=1, description="Longest row, characters of all its turns")
    system_prompt: str | None = Field(
        None, min_length=1, max_length=20_000, description="A system turn before every prompt that has none"
    )
    prompt_template: str = Field(
        PROMPT_PLACE,
        max_length=20_000,
        description="What the last turn of a prompt becomes, and each user turn of a demonstration; `{prompt}` is its "
        "text. Example: `{prompt} Put the answer into \\boxed{}.`",
    )

    @field_validator("prompt_template")
    @classmethod
    def _has_one_place(cls, template: str) -> str:
        if (count := template.count(PROMPT_PLACE)) != 1:
            raise ValueError(f"holds {PROMPT_PLACE} {count} times. Write it once, where the prompt goes.")
        return template
