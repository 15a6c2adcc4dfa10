"""Which stages of a run have their result already, and why the others run: keys are computed as the run would.

Nothing is started, and nothing in the store is changed.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from containers.contracts.configs.filter_dataset import REFERENCE_INPUT, ReferenceRewardModel
from containers.contracts.configs.stages import StageConfig
from containers.contracts.digests import artifact_digest, read_manifest, verify_artifact
from containers.contracts.hardware import BatchPlan
from containers.contracts.identity import SINGLE_BATCH, config_profile, identity_key, policy_batch, stage_identity
from containers.contracts.names import MANIFEST_FILE, StageName
from containers.contracts.schedule import plan_batch
from containers.contracts.spec import ArtifactRef, StageInput
from containers.formatting import error_line, moment
from containers.launch.base import LaunchError
from tasks.config.run import RunConfig
from tasks.pipeline.inputs import (
    build_base_model_inputs,
    evaluate_policy_inputs,
    evaluate_reward_model_inputs,
    filter_dataset_inputs,
    named_model_input,
    reference_input,
    reference_source,
    start_model_input,
    suite_inputs,
    train_policy_inputs,
    training_inputs,
    whole_filter_config,
)
from tasks.pipeline.reward_models import known_reward_model, named_reward_model
from tasks.run.runtime import code_identity
from tasks.sources.pinned import BranchMayHaveMovedError, pinned_dataset_inputs, pinned_model_input
from tasks.sources.resolve import ModelSource, absent_data
from tasks.store.history import StageHistory, stage_memory
from tasks.store.why import why_it_runs


class _NotCachedError(Exception):
    """The stage has no result yet, so the keys of those after it are not known."""

    def __init__(self, stage: StageName) -> None:
        super().__init__(stage)
        self.stage = stage


class _Lookup:
    """Finds artifacts of a run.

    Args:
        verify: compare every file of an artifact with its manifest.
        ask_hub: find out what a branch is now, and fetch what is not here; else only commits are known.
    """

    def __init__(self, config: RunConfig, *, verify: bool, ask_hub: bool) -> None:
        self.config = config
        self.verify = verify
        self.ask_hub = ask_hub
        self.code_digest = code_identity(config.runtime.kind, image=config.image).digest
        self.history = StageHistory(config.store_dir.resolve(), run_name=config.run.name, output_dir=config.output_dir)
        self.texts: dict[StageName, str] = {StageName.WRITE_REPORT: "runs"}
        self.found: dict[StageName, ArtifactRef] = {}

    def result(self, config: StageConfig, inputs: Sequence[StageInput], batch: BatchPlan = SINGLE_BATCH) -> ArtifactRef:
        """The stage's artifact by its manifest.

        Raises:
            _NotCachedError: there is none.
        """
        stage = StageName(config.stage)
        identity = stage_identity(
            config,
            seed=self.config.run.seed,
            inputs=inputs,
            code_digest=self.code_digest,
            profile=config_profile(self.config.gpu_profile, config),
            batch=batch,
        )
        now = stage_memory(identity, key=identity_key(identity), inputs=tuple(inputs))
        folder = self.config.store_dir.resolve() / "artifacts" / stage / now.key
        if not (folder / MANIFEST_FILE).is_file():
            self.texts[stage] = f"runs: {why_it_runs(stage, self.history.last(stage), now)}"
            raise _NotCachedError(stage)
        whole_up_to = self.config.verify_whole_up_to_bytes
        manifest = verify_artifact(folder, whole_up_to_bytes=whole_up_to) if self.verify else read_manifest(folder)
        self.texts[stage] = f"reused, made {moment(manifest.created_at)}"
        made = ArtifactRef(stage=stage, key=now.key, path=str(folder), digest=artifact_digest(manifest))
        self.found[stage] = made
        return made

    def data_inputs(self) -> tuple[StageInput, ...]:
        """Inputs of filter_dataset."""
        config, filters, suites = self.config, self.config.filter_dataset, self.config.evaluate_reward_model.suites
        if self.ask_hub:
            return filter_dataset_inputs(filters, config.dataset, config.base_model, suites)
        files = pinned_dataset_inputs(config.dataset)
        if filters.contamination != "off":
            files = (*files, *suite_inputs(suites, ask_hub=False))
        if filters.polarity.reference_reward_model is not None:
            files = (*files, self.reference_input(filters.polarity.reference_reward_model))
        if filters.max_tokens is None or config.base_model is None:
            return files
        return (*files, self.model_input(config.base_model, name="tokenizer"))

    def reference_input(self, model: ReferenceRewardModel) -> StageInput:
        """The reward model that judges the labels, as input of filter_dataset."""
        source = reference_source(model)
        return reference_input(model) if source.hub_id is None else pinned_model_input(source, name=REFERENCE_INPUT)

    def model_input(self, source: ModelSource, *, name: str) -> StageInput:
        """The base model as input of that name."""
        if self.ask_hub or source.hub_id is None:
            return named_model_input(source).model_copy(update={"name": name})
        return pinned_model_input(source, name=name)


@dataclass(frozen=True)
class CachedStages:
    """What is there of a run already.

    Attributes:
        texts: for each stage whether its result is there, and why it runs where it is not.
        artifacts: folders of the results that are there.
    """

    texts: Mapping[StageName, str]
    artifacts: Mapping[StageName, Path]


def cached_stages(config: RunConfig) -> dict[StageName, str]:
    """For each stage of the run whether its result is there; a stage whose inputs are yet to be made runs.

    Asks nobody: what a branch of the hub is now, and so what starts from it, is not known.
    """
    return dict(look_up_stages(config).texts)


def look_up_stages(config: RunConfig) -> CachedStages:
    """As `cached_stages`, with the artifacts; by their manifests, no file of them is compared."""
    try:
        lookup, rest = _Lookup(config, verify=False, ask_hub=False), "runs"
    except LaunchError as error:  # what the stages are computed with is part of their keys
        return CachedStages(dict.fromkeys(config.stages, f"not known: {error_line(error)}"), {})
    try:
        _walk_to_the_end(lookup, config)
    except _NotCachedError as missing:
        rest = f"runs, unless {missing.stage} makes the same as before"
        if lookup.history.last(missing.stage) is None:
            rest = "runs"
    except BranchMayHaveMovedError as unknown:
        rest = str(unknown)
    except Exception as error:  # a source that cannot be had is for the system check to explain
        first_line = str(error).partition("\n")[0]
        # `rlhf plan` names what of the data is missing by itself.
        rest = f"not known: {'its data is not here' if any(absent_data(config.dataset)) else first_line}"
    texts = {stage: lookup.texts.get(stage, rest) for stage in config.stages}
    artifacts = {stage: Path(found.path) for stage, found in lookup.found.items() if stage in texts}
    again = config.run.again_from
    for stage in config.stages[config.stages.index(again) :] if again in config.stages else ():
        if artifacts.pop(stage, None) is not None:
            texts[stage] = "runs: run.again_from asks for it"
    return CachedStages(texts, artifacts)


def finished_artifacts(config: RunConfig) -> dict[StageName, ArtifactRef] | None:
    """Every stage's artifact, each file compared with its manifest; None where a stage would have to run.

    Asks the hub where the run names a branch there.
    """
    try:
        lookup = _Lookup(config, verify=True, ask_hub=True)
        _walk_to_the_end(lookup, config)
    except Exception:  # whatever is missing or damaged: the run itself sees to it, and says so
        return None
    return lookup.found


def _walk_to_the_end(lookup: _Lookup, config: RunConfig) -> None:
    """Look every result up that the run would make, and none behind its end.

    Raises:
        _NotCachedError: one is not there.
    """
    for artifact in _walk(lookup, config):
        if artifact.stage == config.run.until:
            return


def _walk(lookup: _Lookup, config: RunConfig) -> Iterator[ArtifactRef]:
    """The order of `flows.rlhf`, on results that are there; stops at the first that is not."""
    profile = config.gpu_profile
    filters = whole_filter_config(config.filter_dataset, config.dataset, config.evaluate_reward_model.suites)
    pairs = lookup.result(filters, lookup.data_inputs())
    yield pairs
    if config.needs_start_model:
        model = yield from _start_model(lookup, config, pairs)
    batch = plan_batch(config.train_reward_model.global_batch_size, profile)
    reward_model: ArtifactRef | StageInput
    if config.reward_model:
        reward_model = (named_reward_model if lookup.ask_hub else known_reward_model)(config.reward_model)
    else:
        reward_model = lookup.result(config.train_reward_model, training_inputs(pairs, model), batch)
        yield reward_model
    evaluation = config.evaluate_reward_model
    judged_by = evaluate_reward_model_inputs(evaluation, pairs, reward_model, ask_hub=lookup.ask_hub)
    yield lookup.result(evaluation, judged_by)
    training = config.train_policy
    batch = policy_batch(training, profile)
    policy = lookup.result(training, train_policy_inputs(pairs, model, reward_model), batch)
    yield policy
    yield lookup.result(config.evaluate_policy, evaluate_policy_inputs(pairs, model, policy, reward_model))


def _start_model(lookup: _Lookup, config: RunConfig, pairs: ArtifactRef) -> Generator[ArtifactRef, None, StageInput]:
    if config.build_base_model:
        built = lookup.result(config.build_base_model, build_base_model_inputs(pairs, config.tokenizer_file))
        yield built
        model = start_model_input(built)
    elif config.base_model:
        model = lookup.model_input(config.base_model, name="start_model")
    if config.train_sft:
        batch = plan_batch(config.train_sft.global_batch_size, config.gpu_profile)
        tuned = lookup.result(config.train_sft, training_inputs(pairs, model), batch)
        yield tuned
        model = start_model_input(tuned)
    return model
