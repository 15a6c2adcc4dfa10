"""Which inputs each stage reads, by name. Tasks start stages with these; `rlhf plan` looks for their results."""

from pathlib import Path

from containers.contracts.names import MODEL_FOLDER
from containers.contracts.spec import ArtifactRef, StageInput
from containers.contracts.stage_configs import EvaluateRewardModelConfig, FilterDatasetConfig
from tasks.sources import (
    DatasetSource,
    ModelSource,
    ResolvedSource,
    hub_token,
    resolve_dataset,
    resolve_file,
    resolve_model,
)


def artifact_input(name: str, artifact: ArtifactRef, *, folder: str = "") -> StageInput:
    """An artifact, or a folder in it, as input of the next stage."""
    return StageInput(
        name=name,
        path=str(Path(artifact.path) / folder),
        digest=artifact.digest,
        origin=f"{artifact.stage} {artifact.key[:12]}",
    )


def start_model_input(artifact: ArtifactRef) -> StageInput:
    """The model that build_base_model or train_sft made, as start of the next stage."""
    return artifact_input("start_model", artifact, folder=MODEL_FOLDER)


def named_model_input(source: ModelSource) -> StageInput:
    """The model that the run names, fetched where it is not here yet."""
    return _input("start_model", resolve_model(source, token=hub_token()))


def filter_dataset_inputs(
    config: FilterDatasetConfig, dataset: DatasetSource, base_model: ModelSource | None
) -> tuple[StageInput, ...]:
    """The data files, and the tokenizer where lengths count in tokens."""
    files = tuple(_input(item.name, item) for item in resolve_dataset(dataset, token=hub_token()))
    if config.max_tokens is None or base_model is None:
        return files
    return (*files, _input("tokenizer", resolve_model(base_model, token=hub_token())))


def build_base_model_inputs(pairs: ArtifactRef, tokenizer_file: Path | None) -> tuple[StageInput, ...]:
    """The pairs, and a vocabulary where the run names one."""
    known = (artifact_input("pairs", pairs),)
    return known if tokenizer_file is None else (*known, _file("tokenizer_file", tokenizer_file))


def training_inputs(pairs: ArtifactRef, start_model: StageInput) -> tuple[StageInput, ...]:
    """Of train_sft and train_reward_model."""
    return artifact_input("pairs", pairs), start_model


def evaluate_reward_model_inputs(
    config: EvaluateRewardModelConfig, pairs: ArtifactRef, reward_model: ArtifactRef
) -> tuple[StageInput, ...]:
    """The pairs, the model, and each pair file as `file_<name>`."""
    files = (_file(f"file_{file.name}", Path(file.path)) for file in config.pair_files)
    return artifact_input("pairs", pairs), artifact_input("reward_model", reward_model), *files


def train_policy_inputs(
    pairs: ArtifactRef, start_model: StageInput, reward_model: ArtifactRef
) -> tuple[StageInput, ...]:
    """Prompts, the model to start from, and the reward model."""
    return *training_inputs(pairs, start_model), artifact_input("reward_model", reward_model)


def evaluate_policy_inputs(
    pairs: ArtifactRef, start_model: StageInput, policy: ArtifactRef, reward_model: ArtifactRef
) -> tuple[StageInput, ...]:
    """Prompts, the reference, the policy, and the reward model that judges both."""
    return *train_policy_inputs(pairs, start_model, reward_model), artifact_input("policy", policy)


def _file(name: str, path: Path) -> StageInput:
    return _input(name, resolve_file(path, name=name))


def _input(name: str, found: ResolvedSource) -> StageInput:
    return StageInput(name=name, path=str(found.path), digest=found.digest, origin=found.origin)
