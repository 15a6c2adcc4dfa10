"""The sections `base_model:` and `dataset:` of a run: where model and data come from. Checks only the text."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from containers.contracts.base import Frozen, Positive
from containers.contracts.configs.filter_dataset import (
    FilterDatasetConfig,
    HeldOutSuite,
    ReferenceRewardModel,
    SourceShare,
)
from containers.contracts.configs.row_reading import RankingPairs, RowReading
from containers.contracts.configs.suites import SuiteFile
from containers.data.formats.columns import KNOWN_COLUMNS
from containers.near_words import nearest_word

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"{_NAME}/{_NAME}")
COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}")


def _hub_id(value: str) -> str:
    if not _HUB_ID.fullmatch(value) or ".." in value or "--" in value or value.endswith(".git"):
        raise ValueError(
            f"{value!r} is no hub id. It must be `org/name` of letters, digits, `-`, `_` and `.`, for example "
            f"`Qwen/Qwen3-8B`; a local folder or file goes without hub_id."
        )
    return value


def _revision(value: str) -> str:
    if not _REVISION.fullmatch(value) or ".." in value or value.endswith("/"):
        raise ValueError(
            f"{value!r} is no revision. Give a commit of 40 hexadecimal digits (best), or a branch or tag."
        )
    return value


HubId = Annotated[str, AfterValidator(_hub_id)]
Revision = Annotated[str, AfterValidator(_revision)]


class ModelSource(Frozen):
    """A causal language model with tokenizer and chat template: on the hub, or in a local folder."""

    hub_id: HubId | None = Field(None, description="`org/name` on the hub, for example `Qwen/Qwen3-8B`")
    revision: Revision | None = Field(
        None, description="Commit (best: the run can be repeated) or branch, resolved to its commit; with hub_id only"
    )
    path: str | None = Field(None, min_length=1, description="Local folder with config.json, safetensors and tokenizer")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.hub_id is not None and self.path is not None:
            raise ValueError("both hub_id and path are given. Keep exactly one of them.")
        if self.hub_id is None and self.path is None:
            raise ValueError("neither hub_id nor path is given. Give `hub_id` and `revision`, or `path`.")
        _check_pairing(self.hub_id, self.revision)
        return self


class RewardModelSource(ModelSource):
    """A reward model that was trained elsewhere: on the hub, or in a local folder; whole, or a LoRA adapter."""

    hub_id: HubId | None = Field(None, description="`org/name` on the hub")
    path: str | None = Field(
        None,
        min_length=1,
        description="Local folder with config.json or adapter_config.json, safetensors, tokenizer",
    )
    base: str | None = Field(
        None,
        min_length=1,
        description="Base model of an adapter, where it is not the one that the adapter names: a folder, or "
        "`org/name@revision`; null: the one that the adapter names",
    )


class RowSource(Frozen):
    """Preference rows as jsonl, jsonl.gz or parquet: in a dataset repository on the hub, or local."""

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

    @field_validator("columns")
    @classmethod
    def _columns(cls, columns: dict[str, str]) -> dict[str, str]:
        for ours, theirs in columns.items():
            if ours not in KNOWN_COLUMNS:
                meant = nearest_word(ours, KNOWN_COLUMNS)
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
        return RowReading(columns=self.columns, ranking_pairs=self.ranking_pairs)

    @field_validator("reader")
    @classmethod
    def _reader(cls, value: str | None) -> str | None:
        if value is not None and not value.endswith(".py"):
            raise ValueError(f"{value!r} is no Python file. Name a local file that ends in .py and has `read_rows`.")
        return value

    @model_validator(mode="after")
    def _patterns_stay_inside(self) -> Self:
        _check_pairing(self.hub_id, self.revision)
        for key, pattern in (("train", self.train), ("validation", self.validation)):
            if self.hub_id is None or pattern is None:
                continue
            if pattern.startswith(("/", "-", "~")) or ".." in pattern.split("/") or "\\" in pattern:
                raise ValueError(
                    f"{key} {pattern!r} is no path inside the repository {self.hub_id}. Give one relative to its root, "
                    f"such as `preference/train.jsonl.gz`; for a local file leave hub_id out."
                )
        return self


class MixedSource(RowSource):
    """One source of a mixture."""

    name: str = Field(
        min_length=1,
        max_length=40,
        pattern=r"^[a-z0-9][a-z0-9_-]*$",
        description="Lower-case letters, digits, `-`, `_`; names it in tables and plots",
    )
    weight: Positive | None = Field(
        None, description="Its share of the training pairs, against the other weights; null: all its pairs"
    )

    @model_validator(mode="after")
    def _has_rows(self) -> Self:
        if not self.train:
            raise ValueError("train is empty. Name a file or folder.")
        return self


class DatasetSource(RowSource):
    """Where the preference rows come from: one source, or a mixture of several with names and weights."""

    train: str = Field(
        max_length=1024,
        description="With hub_id: a file or pattern in the repository (`preference/train.jsonl.gz`); else a local file "
        "or folder. Not beside a mixture",
    )
    mixture: tuple[MixedSource, ...] = Field((), description="Several sources in place of one; leave `train` out then")

    @model_validator(mode="before")
    @classmethod
    def _a_mixture_needs_no_train(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("mixture") and "train" not in given:
            return {**given, "train": ""}
        return given

    @model_validator(mode="after")
    def _one_source_or_several(self) -> Self:
        if not self.mixture:
            if not self.train:
                raise ValueError("train is empty. Name a file or folder, or several sources under `mixture`.")
            return self
        fields = RowSource.model_fields.items()
        own = [key for key, field in fields if getattr(self, key) and getattr(self, key) != field.default]
        if own:
            raise ValueError(f"{own[0]} is set beside a mixture. Put it into one of the mixture's sources.")
        names = [source.name for source in self.mixture]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the mixture has {names.count(name)} sources named `{name}`. Give each its own name.")
        missing = [source.name for source in self.mixture if source.weight is None]
        if missing and len(missing) < len(self.mixture):
            raise ValueError(f"the mixture's source `{missing[0]}` has no weight, others have. Weigh all or none.")
        return self

    @property
    def parts(self) -> tuple[tuple[str, RowSource], ...]:
        """Each source with its name; a single source has an empty name."""
        return tuple((source.name, source) for source in self.mixture) or (("", self),)

    @property
    def is_local(self) -> bool:
        """Whether no source is on the hub."""
        return all(source.hub_id is None for _, source in self.parts)

    @property
    def holds_out_by_prompt(self) -> bool:
        """Whether a source has no validation file, so that a share of its prompts is held out."""
        return any(source.validation is None for _, source in self.parts)


def _check_pairing(hub_id: str | None, revision: str | None) -> None:
    if hub_id is not None and revision is None:
        raise ValueError(
            f"hub_id {hub_id} needs a `revision`: a commit of 40 hexadecimal digits (best), or a branch such as "
            f"`main`, which is resolved to its commit when the run starts."
        )
    if hub_id is None and revision is not None:
        raise ValueError(f"revision {revision!r} belongs to a hub_id, and none is given. Leave it out.")


def whole_filter_config(
    config: FilterDatasetConfig, dataset: DatasetSource, suites: Sequence[SuiteFile]
) -> FilterDatasetConfig:
    """The stage's configuration with the mixture, how its rows are read and, unless `contamination` is off, the suites.

    The gate's minimum for a suite, and the paths of suites and reference reward model, are left out: none changes what
    the stage does. Their contents count as the stage's inputs.
    """
    looked_for = suites if config.contamination != "off" else ()
    asked = config.polarity.reference_reward_model is not None
    return config.model_copy(
        update={
            "mixture": tuple(
                SourceShare(name=source.name, weight=source.weight, reading=source.reading)
                for source in dataset.mixture
            ),
            "reading": dataset.reading,
            "polarity": config.polarity.model_copy(
                update={"reference_reward_model": ReferenceRewardModel() if asked else None}
            ),
            "suites": tuple(HeldOutSuite(name=suite.name, benchmark=suite.benchmark) for suite in looked_for),
        }
    )
