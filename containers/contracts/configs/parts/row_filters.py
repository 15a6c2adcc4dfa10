"""How the rows of a source are read where its columns do not say it, and the filters that all rows have in common."""

import re
from typing import Literal, NamedTuple, Self

from pydantic import Field, field_validator

from containers.contracts.base import Fraction, Frozen, Name, Positive, Rows

# The place of a row's text in `prompt_template`.
PROMPT_PLACE = "{prompt}"
RankingPairs = Literal["best_and_worst", "adjacent", "all"]

_END = r"-?\d[\d_]*%?"
_SPLIT = re.compile(rf"(?P<name>\w[\w.-]*)(?P<rows>\[(?P<start>{_END})?:(?P<stop>{_END})?\])?", re.ASCII)


class RowReading(Frozen):
    """Settings of a source that change which rows and pairs come out of its files."""

    columns: dict[str, str] = Field({}, description="Our name of a column: the file's name")
    ranking_pairs: RankingPairs = Field("best_and_worst", description="Pairs of a row with several answers")
    train_rows: str = Field("", description="Rows of the training files, such as `[:10%]`; empty: all")
    validation_rows: str = Field("", description="As `train_rows`, of the validation files")

    @property
    def makes_more_pairs(self) -> bool:
        """Whether one row may give several pairs."""
        return self.ranking_pairs != "best_and_worst"


AS_FOUND = RowReading()


class SplitName(NamedTuple):
    """A split of a dataset on the hub and, in brackets, its rows."""

    name: str
    rows: str

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Read `train`, `train[:10%]` or `train[100:200]`, as the datasets library writes them.

        Raises:
            ValueError: it is none of these, or no rows can be in it.
        """
        found = _SPLIT.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} is no split. Write `train`, `train[:10%]` or `train[100:200]`; several splits are several "
                f"sources of a mixture."
            )
        ends = [end for end in (found["start"], found["stop"]) if end is not None]
        if len(ends) == 2 and ends[0].endswith("%") != ends[1].endswith("%"):
            raise ValueError(f"{text!r} mixes a number of rows and a percentage. Write both ends in one unit.")
        numbers = [int(end.rstrip("%")) for end in ends]
        if any(end.endswith("%") and abs(number) > 100 for end, number in zip(ends, numbers, strict=True)):
            raise ValueError(f"{text!r} names more than all rows. Percentages go from -100 to 100.")
        if len(numbers) == 2 and numbers[0] >= numbers[1] and (numbers[0] < 0) == (numbers[1] < 0):
            raise ValueError(f"{text!r} holds no row: it ends where it begins, or before.")
        return cls(found["name"], found["rows"] or "")


def slice_of(rows: str, *, num_rows: int) -> range:
    """The numbers of the rows in a slice, from 0.

    Args:
        rows: `[start:stop]` as in a split; each a number or a percentage, negative ones from the end; empty: all.
        num_rows: of the whole split.

    Source: the slices of the datasets library: percentages are rounded to the nearest row, ends beyond the rows are
        the last row.
    Example: `[:10%]` of 2,817 rows are the rows 0 to 281.
    """
    found = _SPLIT.fullmatch(f"x{rows}")
    start, stop = (None, None) if found is None else (found["start"], found["stop"])
    first, last = _place(start, num_rows, otherwise=0), _place(stop, num_rows, otherwise=num_rows)
    return range(first, max(first, last))


def _place(end: str | None, num_rows: int, *, otherwise: int) -> int:
    if end is None:
        return otherwise
    place = round(num_rows * int(end[:-1]) / 100) if end.endswith("%") else int(end)
    return min(num_rows, max(0, place + num_rows) if place < 0 else place)


class SourceShare(Frozen):
    """A source of a mixture by its name, its weight among the training rows, and how its rows are read."""

    name: Name = Field(description="As in the run's mixture")
    weight: Positive | None = Field(None, description="Against the other sources' weights; null: all its rows")
    reading: RowReading = Field(RowReading(), description="As the source's keys in the mixture say")


class HeldOutSuite(Frozen):
    """Data that will judge a model, so no model must train on it."""

    name: Name = Field(description="As in evaluate_reward_model.suites, or answer_sets.sets")
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
        description="Rows whose prompt is in a suite of evaluate_reward_model or a set of answer_sets; `report` lists "
        "and keeps them",
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
        (), description="Leave it out: the run puts evaluate_reward_model.suites and answer_sets.sets here"
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
