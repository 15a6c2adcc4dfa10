"""The inputs of each stage, by name. Tasks start stages with them; `rlhf plan` looks for their results."""

from collections.abc import Sequence
from pathlib import Path

from containers.contracts.configs.answer_sets import StandardSet
from containers.contracts.configs.evaluate_reward_model import SuiteFile
from containers.contracts.configs.filter_dataset import REFERENCE_INPUT, FilterDatasetConfig
from containers.contracts.configs.filter_demonstrations import FilterDemonstrationsConfig
from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.configs.parts.row_filters import RowFilters
from containers.contracts.names import MODEL_FOLDER
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.config.sources import DatasetSource, ModelSource, model_source
from tasks.sources.hub import hub_token
from tasks.sources.local import ResolvedSource, resolve_file
from tasks.sources.peek import DEMONSTRATIONS, PROMPTS, DataKind
from tasks.sources.pinned import pinned_dataset_inputs, pinned_model_input
from tasks.sources.resolve import resolve_dataset, resolve_model
from tasks.sources.suites import pinned_suite, resolve_suite

# The role of the model before supervised fine-tuning.
BEFORE_MODEL = "before_model"
# How messages name the model that judges the labels.
REFERENCE_KEY = "filter_dataset.polarity.reference_reward_model"


def artifact_input(name: str, artifact: ArtifactRef, *, folder: str = "") -> StageInput:
    """An artifact, or a folder in it, as input of the next stage."""
    return StageInput(
        name=name,
        path=str(Path(artifact.path) / folder),
        digest=artifact.digest,
        origin=f"{artifact.stage} {artifact.key[:12]}",
    )


def made_input(role: str, made: ArtifactRef | StageInput) -> StageInput:
    """Input of that role: what an earlier stage made, or the model that the run names in its place."""
    if isinstance(made, StageInput):
        return made.model_copy(update={"name": role}) if role == BEFORE_MODEL else made
    return artifact_input(role, made, folder=MODEL_FOLDER if role in ("start_model", BEFORE_MODEL) else "")


def named_model_input(source: ModelSource, *, name: str = "start_model") -> StageInput:
    """Input for a model that the run names; fetched if it is not on this disk."""
    return model_input(source, name=name, ask_hub=True, key="base_model" if name == "start_model" else name)


def filter_dataset_inputs(
    config: FilterDatasetConfig,
    dataset: DatasetSource,
    base_model: ModelSource | None,
    suites: Sequence[SuiteFile | StandardSet] = (),
    *,
    ask_hub: bool = True,
) -> tuple[StageInput, ...]:
    """Inputs of filter_dataset: data, suites to keep out, the model that judges labels, a tokenizer for `max_tokens`.

    Args:
        ask_hub: fetch missing files; else sources on the hub are known by their commit only.
    """
    if ask_hub:
        files = tuple(_input(item.name, item) for item in resolve_dataset(dataset, token=hub_token()))
    else:
        files = pinned_dataset_inputs(dataset)
    if config.contamination != "off":
        files = (*files, *suite_inputs(suites, ask_hub=ask_hub))
    if config.polarity.reference_reward_model is not None:
        judge = model_source(config.polarity.reference_reward_model)
        files = (*files, model_input(judge, name=REFERENCE_INPUT, ask_hub=ask_hub, key=REFERENCE_KEY))
    if config.max_tokens is None or base_model is None:
        return files
    return (*files, model_input(base_model, name="tokenizer", ask_hub=ask_hub))


def filter_prompts_inputs(
    config: FilterPromptsConfig,
    prompts: DatasetSource,
    suites: Sequence[SuiteFile | StandardSet] = (),
    *,
    ask_hub: bool = True,
) -> tuple[StageInput, ...]:
    """Inputs of filter_prompts: data, and suites to keep out; `ask_hub` as in `filter_dataset_inputs`."""
    return _text_inputs(config, prompts, suites, kind=PROMPTS, ask_hub=ask_hub)


def filter_demonstrations_inputs(
    config: FilterDemonstrationsConfig,
    demonstrations: DatasetSource,
    suites: Sequence[SuiteFile | StandardSet] = (),
    *,
    ask_hub: bool = True,
) -> tuple[StageInput, ...]:
    """Inputs of filter_demonstrations that no stage makes; arguments as in `filter_prompts_inputs`."""
    return _text_inputs(config, demonstrations, suites, kind=DEMONSTRATIONS, ask_hub=ask_hub)


def _text_inputs(
    config: RowFilters,
    source: DatasetSource,
    suites: Sequence[SuiteFile | StandardSet],
    *,
    kind: DataKind,
    ask_hub: bool,
) -> tuple[StageInput, ...]:
    if ask_hub:
        found = resolve_dataset(source, token=hub_token(), kind=kind)
        files = tuple(_input(item.name, item) for item in found)
    else:
        files = pinned_dataset_inputs(source, section=kind.section)
    return files if config.contamination == "off" else (*files, *suite_inputs(suites, ask_hub=ask_hub))


def model_input(source: ModelSource, *, name: str, ask_hub: bool, key: str = "base_model") -> StageInput:
    """Input `name` for a model; with `ask_hub`, it is fetched if it is not on this disk. `key` is for messages."""
    if ask_hub or source.hub_id is None:
        return _input(name, resolve_model(source, token=hub_token(), key=key))
    return pinned_model_input(source, name=name)


def vocabulary_input(tokenizer_file: Path | None) -> tuple[StageInput, ...]:
    """Input of build_base_model beside the pairs: the vocabulary, if the run names one."""
    if tokenizer_file is None:
        return ()
    return (_input("tokenizer_file", resolve_file(tokenizer_file, name="tokenizer_file")),)


def suite_inputs(suites: Sequence[SuiteFile | StandardSet], *, ask_hub: bool = True) -> tuple[StageInput, ...]:
    """One input `suite_<name>` for each suite.

    Args:
        ask_hub: fetch missing files; else suites on the hub are known by their commit only.
    """
    return tuple(resolve_suite(suite, token=hub_token()) if ask_hub else pinned_suite(suite) for suite in suites)


def _input(name: str, found: ResolvedSource) -> StageInput:
    return StageInput(name=name, path=str(found.path), digest=found.digest, origin=found.origin)
