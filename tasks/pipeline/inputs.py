"""The inputs of each stage, by name. Tasks start stages with them; `rlhf plan` looks for their results."""

from collections.abc import Sequence
from pathlib import Path

from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.configs.filter_dataset import REFERENCE_INPUT, FilterDatasetConfig, ReferenceRewardModel
from containers.contracts.configs.suites import SuiteFile
from containers.contracts.names import CERTIFICATE_INPUT, MODEL_FOLDER
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.config.sources import DatasetSource, ModelSource
from tasks.sources.hub import hub_token
from tasks.sources.local import ResolvedSource, resolve_file
from tasks.sources.pinned import pinned_dataset_inputs, pinned_model_input
from tasks.sources.resolve import resolve_dataset, resolve_model
from tasks.sources.suites import pinned_suite, resolve_suite

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


def reward_model_input(model: ArtifactRef | StageInput) -> StageInput:
    """Input `reward_model`: a model that was trained here, or the one that the run names."""
    return artifact_input("reward_model", model) if isinstance(model, ArtifactRef) else model


def start_model_input(model: ArtifactRef | StageInput) -> StageInput:
    """Input `start_model`: the model of build_base_model or train_sft, or the one that the run names."""
    return artifact_input("start_model", model, folder=MODEL_FOLDER) if isinstance(model, ArtifactRef) else model


def named_model_input(source: ModelSource, *, name: str = "start_model") -> StageInput:
    """Input for a model that the run names; fetched if it is not on this disk."""
    key = "base_model" if name == "start_model" else name
    return _input(name, resolve_model(source, token=hub_token(), key=key))


def filter_dataset_inputs(
    config: FilterDatasetConfig,
    dataset: DatasetSource,
    base_model: ModelSource | None,
    suites: Sequence[SuiteFile] = (),
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
        files = (*files, reference_input(config.polarity.reference_reward_model, ask_hub=ask_hub))
    if config.max_tokens is None or base_model is None:
        return files
    return (*files, model_input(base_model, name="tokenizer", ask_hub=ask_hub))


def model_input(source: ModelSource, *, name: str, ask_hub: bool) -> StageInput:
    """Input `name` for the base model."""
    if ask_hub or source.hub_id is None:
        return named_model_input(source).model_copy(update={"name": name})
    return pinned_model_input(source, name=name)


def reference_input(model: ReferenceRewardModel, *, ask_hub: bool = True) -> StageInput:
    """Input for the reward model that judges the labels; fetched if it is not on this disk."""
    source = reference_source(model)
    if not ask_hub and source.hub_id is not None:
        return pinned_model_input(source, name=REFERENCE_INPUT)
    return _input(REFERENCE_INPUT, resolve_model(source, token=hub_token(), key=REFERENCE_KEY))


def reference_source(model: ReferenceRewardModel) -> ModelSource:
    """The reference reward model as a `ModelSource`."""
    return ModelSource(**model.model_dump())


def build_base_model_inputs(pairs: ArtifactRef, tokenizer_file: Path | None) -> tuple[StageInput, ...]:
    """Inputs of build_base_model: the pairs, and the vocabulary if the run names one."""
    known = (artifact_input("pairs", pairs),)
    return known if tokenizer_file is None else (*known, _file("tokenizer_file", tokenizer_file))


def training_inputs(pairs: ArtifactRef, start_model: ArtifactRef | StageInput) -> tuple[StageInput, ...]:
    """Inputs of train_sft and train_reward_model."""
    return artifact_input("pairs", pairs), start_model_input(start_model)


def suite_inputs(suites: Sequence[SuiteFile], *, ask_hub: bool = True) -> tuple[StageInput, ...]:
    """One input `suite_<name>` for each suite.

    Args:
        ask_hub: fetch missing files; else suites on the hub are known by their commit only.
    """
    return tuple(resolve_suite(suite, token=hub_token()) if ask_hub else pinned_suite(suite) for suite in suites)


def evaluate_reward_model_inputs(
    config: EvaluateRewardModelConfig,
    pairs: ArtifactRef,
    reward_model: ArtifactRef | StageInput,
    *,
    ask_hub: bool = True,
) -> tuple[StageInput, ...]:
    """Inputs of evaluate_reward_model: the pairs, the model, and the suites."""
    suites = suite_inputs(config.suites, ask_hub=ask_hub)
    return artifact_input("pairs", pairs), reward_model_input(reward_model), *suites


def certificate_input(certificate: ArtifactRef) -> StageInput:
    """Input for the reward model's certificate. The policy stage requires it; its key does not include it."""
    return artifact_input(CERTIFICATE_INPUT, certificate)


def train_policy_inputs(
    pairs: ArtifactRef, start_model: ArtifactRef | StageInput, reward_model: ArtifactRef | StageInput
) -> tuple[StageInput, ...]:
    """Inputs of train_policy: prompts, the model to start from, and the reward model."""
    return *training_inputs(pairs, start_model), reward_model_input(reward_model)


def evaluate_policy_inputs(
    pairs: ArtifactRef,
    start_model: ArtifactRef | StageInput,
    policy: ArtifactRef,
    reward_model: ArtifactRef | StageInput,
) -> tuple[StageInput, ...]:
    """Inputs of evaluate_policy: prompts, reference, policy, and the reward model that judges both."""
    return *train_policy_inputs(pairs, start_model, reward_model), artifact_input("policy", policy)


def _file(name: str, path: Path) -> StageInput:
    return _input(name, resolve_file(path, name=name))


def _input(name: str, found: ResolvedSource) -> StageInput:
    return StageInput(name=name, path=str(found.path), digest=found.digest, origin=found.origin)
