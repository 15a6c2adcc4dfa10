"""One source of rows: where its files are, and how their rows are read. Checks only the text."""

from collections import Counter
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from containers.contracts.base import Frozen
from containers.contracts.configs.parts.row_filters import RankingPairs, RowReading, SplitName
from containers.data.demonstrations.forms import KNOWN_COLUMNS as DEMONSTRATION_COLUMNS
from containers.data.formats.columns import KNOWN_COLUMNS as PREFERENCE_COLUMNS
from containers.data.prompts.forms import KNOWN_COLUMNS as PROMPT_COLUMNS
from containers.near_words import nearest_word
from tasks.config.hub_ids import HubId, Revision, check_pairing

_KNOWN_COLUMNS = tuple(dict.fromkeys((*PREFERENCE_COLUMNS, *PROMPT_COLUMNS, *DEMONSTRATION_COLUMNS)))


class RowSource(Frozen):
    """Rows as jsonl, jsonl.gz or parquet: in a dataset repository on the hub, or local."""

    hub_id: HubId | None = Field(
        None, description="`org/name` on the hub, for example `nvidia/HelpSteer3`; null: local"
    )
    revision: Revision | None = Field(
        None, description="Commit (best: the run can be repeated) or branch, resolved to its commit; with hub_id only"
    )
    train: str = Field(
        max_length=1024,
        description="With hub_id: a file or pattern in the repository (`preference/train.jsonl.gz`); else a local file "
        "or folder",
    )
    validation: str | None = Field(
        None, min_length=1, max_length=1024, description="As `train`; null: a share of the training prompts is held out"
    )
    subset: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="With hub_id and `split`: the subset as the hub's page names it; null: the default one",
    )
    split: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="With hub_id, in place of `train`: a split as the hub's page names it, with a slice if wanted: "
        "`train`, `train[:10%]`, `train[100:200]`",
    )
    validation_split: str | None = Field(
        None, min_length=1, max_length=255, description="As `split`, in place of `validation`"
    )
    reader: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="A local Python file with `read_rows(path)`, for data in another format; its code runs inside the "
        "stage",
    )

    columns: dict[str, str] = Field(
        {},
        description="Our name of a column: the file's name, such as `{prompt: question, chosen: answer_a}`; applied "
        "before the format is detected",
    )
    ranking_pairs: RankingPairs = Field(
        "best_and_worst",
        description="Pairs of a row with several ranked answers: the best against the worst, each against the next "
        "(`adjacent`), or `all`",
    )

    @field_validator("columns", mode="before")
    @classmethod
    def _no_columns(cls, columns: Any) -> Any:
        return {} if columns is None else columns

    @field_validator("columns")
    @classmethod
    def _columns(cls, columns: dict[str, str]) -> dict[str, str]:
        for ours, theirs in columns.items():
            if ours not in _KNOWN_COLUMNS:
                meant = nearest_word(ours, _KNOWN_COLUMNS)
                raise ValueError(
                    f"`{ours}` is a column of no format. {f'Did you mean `{meant}`? ' if meant else ''}"
                    f"Write `our name: the file's name`; docs/data.md lists our names."
                )
            if not theirs:
                raise ValueError(f"`{ours}` has an empty name. Name the file's column, or leave `{ours}` out.")
        for theirs, count in Counter(columns.values()).items():
            if count > 1:
                raise ValueError(f"{count} of our names are given to the file's column `{theirs}`. Give it one.")
        return columns

    @property
    def reading(self) -> RowReading:
        """What the stage must know to read the rows as configured."""
        train, validation = (
            "" if split is None else SplitName.parsed(split).rows for split in (self.split, self.validation_split)
        )
        return RowReading(
            columns=self.columns, ranking_pairs=self.ranking_pairs, train_rows=train, validation_rows=validation
        )

    @field_validator("reader")
    @classmethod
    def _reader(cls, value: str | None) -> str | None:
        if value is not None and not value.endswith(".py"):
            raise ValueError(f"{value!r} is no Python file. Name a local file that ends in .py and has `read_rows`.")
        return value

    @model_validator(mode="before")
    @classmethod
    def _a_split_needs_no_train(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("split") and "train" not in given:
            return {**given, "train": ""}
        return given

    @field_validator("split", "validation_split")
    @classmethod
    def _split(cls, value: str | None) -> str | None:
        if value is not None:
            SplitName.parsed(value)
        return value

    @model_validator(mode="after")
    def _files_or_splits(self) -> Self:
        named = [key for key in ("subset", "split", "validation_split") if getattr(self, key) is not None]
        if named and self.hub_id is None:
            raise ValueError(f"{named[0]} belongs to a hub_id, and none is given. Local files are named in `train`.")
        if self.subset is not None and self.split is None and self.validation_split is None:
            raise ValueError("subset is given without a split. Name the split too, such as `split: train`.")
        for files, split in (("train", "split"), ("validation", "validation_split")):
            if getattr(self, files) and getattr(self, split):
                raise ValueError(f"both {files} and {split} are given. Keep exactly one of them.")
        if self.reader is not None and (self.reading.train_rows or self.reading.validation_rows):
            raise ValueError("a slice of a split cannot be taken from what a reader yields. Leave the brackets out.")
        return self

    @property
    def holds_out(self) -> bool:
        """Whether it has no validation data, so that a share of its prompts is held out."""
        return self.validation is None and self.validation_split is None

    @model_validator(mode="after")
    def _patterns_stay_inside(self) -> Self:
        check_pairing(self.hub_id, self.revision)
        for key, pattern in (("train", self.train), ("validation", self.validation)):
            if self.hub_id is None or pattern is None:
                continue
            if pattern.startswith(("/", "-", "~")) or ".." in pattern.split("/") or "\\" in pattern:
                raise ValueError(
                    f"{key} {pattern!r} is no path inside the repository {self.hub_id}. Give one relative to its root, "
                    f"such as `preference/train.jsonl.gz`; for a local file leave hub_id out."
                )
        return self
