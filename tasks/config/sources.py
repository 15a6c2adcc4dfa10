"""The sections of a run that name sources of models and of rows. Checks only the text."""

from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from containers.contracts.base import Frozen, Positive
from containers.contracts.configs.answer_sets import StandardSet
from containers.contracts.configs.evaluate_reward_model import SuiteFile
from containers.contracts.configs.filter_dataset import FilterDatasetConfig, ReferenceRewardModel
from containers.contracts.configs.filter_demonstrations import FilterDemonstrationsConfig
from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.configs.parts.row_filters import HeldOutSuite, RowFilters, SourceShare
from tasks.config.hub_ids import COMMIT as COMMIT
from tasks.config.hub_ids import HubId, Revision, check_pairing
from tasks.config.row_source import RowSource as RowSource


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
        check_pairing(self.hub_id, self.revision)
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


def model_source(model: ReferenceRewardModel) -> ModelSource:
    """A reward model that a stage's configuration names, as a `ModelSource`."""
    return ModelSource(hub_id=model.hub_id, revision=model.revision, path=model.path)


class MixedSource(RowSource):
    """One source of a mixture."""

    name: str = Field(
        min_length=1,
        max_length=40,
        pattern=r"^[a-z0-9][a-z0-9_-]*$",
        description="Lower-case letters, digits, `-`, `_`; names it in tables and plots",
    )
    weight: Positive | None = Field(
        None, description="Its share of the training rows, against the other weights; null: all its rows"
    )

    @model_validator(mode="after")
    def _has_rows(self) -> Self:
        if not self.train and self.split is None:
            raise ValueError("train is empty. Name a file or folder, or a `split` of a dataset on the hub.")
        return self


class DatasetSource(RowSource):
    """Where rows come from: one source, or a mixture of several with names and weights."""

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
            if not self.train and self.split is None:
                raise ValueError(
                    "train is empty. Name a file or folder, a `split` of a dataset on the hub, or several sources "
                    "under `mixture`."
                )
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
        return any(source.holds_out for _, source in self.parts)


def whole_filter_config(
    config: FilterDatasetConfig, dataset: DatasetSource, suites: Sequence[SuiteFile | StandardSet]
) -> FilterDatasetConfig:
    """The stage's configuration with the mixture, how its rows are read and, unless `contamination` is off, the suites.

    The gate's minimum for a suite, and the paths of suites and reference reward model, are left out: none changes what
    the stage does. Their contents count as the stage's inputs.
    """
    asked = config.polarity.reference_reward_model is not None
    return config.model_copy(
        update={
            **_reading_and_suites(config, dataset, suites),
            "policy_eval_prompt_fraction": config.eval_prompt_fraction,
            "polarity": config.polarity.model_copy(
                update={"reference_reward_model": ReferenceRewardModel() if asked else None}
            ),
        }
    )


def whole_prompt_config(
    config: FilterPromptsConfig,
    prompts: DatasetSource,
    suites: Sequence[SuiteFile | StandardSet],
    *,
    needs_answer: bool,
) -> FilterPromptsConfig:
    """As `whole_filter_config`, for filter_prompts.

    Args:
        needs_answer: whether a reward compares with the reference answer.
    """
    asked = needs_answer if config.require_answer is None else config.require_answer
    return config.model_copy(update={**_reading_and_suites(config, prompts, suites), "require_answer": asked})


def whole_demonstration_config(
    config: FilterDemonstrationsConfig, demonstrations: DatasetSource, suites: Sequence[SuiteFile | StandardSet]
) -> FilterDemonstrationsConfig:
    """As `whole_filter_config`, for filter_demonstrations."""
    return config.model_copy(update=_reading_and_suites(config, demonstrations, suites))


def _reading_and_suites(
    config: RowFilters, source: DatasetSource, suites: Sequence[SuiteFile | StandardSet]
) -> dict[str, object]:
    looked_for = suites if config.contamination != "off" else ()
    return {
        "mixture": tuple(
            SourceShare(name=part.name, weight=part.weight, reading=part.reading) for part in source.mixture
        ),
        "reading": source.reading,
        "suites": tuple(HeldOutSuite(name=suite.name, benchmark=suite.benchmark) for suite in looked_for),
    }
