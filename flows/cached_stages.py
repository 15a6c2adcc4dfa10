"""Which stages of a run have their result already, and why the others run: keys are computed as the run would.

Nothing is started, and nothing in the store is changed.
"""

from collections.abc import Sequence

from containers.contracts.hardware import BatchPlan
from containers.contracts.names import MANIFEST_FILE, StageName
from containers.contracts.spec import ArtifactRef, StageInput
from containers.contracts.stage_configs import StageConfig
from containers.digests import content_digest, read_manifest, verify_artifact
from containers.human_text import moment
from containers.schedule import plan_batch
from flows.run_config import RunConfig
from tasks.code_identity import code_identity
from tasks.pinned_sources import BranchMayHaveMovedError, pinned_dataset_inputs, pinned_model_input
from tasks.sources import ModelSource
from tasks.stage_history import StageHistory, stage_memory
from tasks.stage_inputs import (
    build_base_model_inputs,
    evaluate_policy_inputs,
    evaluate_reward_model_inputs,
    filter_dataset_inputs,
    named_model_input,
    start_model_input,
    train_policy_inputs,
    training_inputs,
)
from tasks.stage_key import SINGLE_BATCH, identity_key, stage_identity, stage_profile
from tasks.why_it_runs import why_it_runs


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
            profile=stage_profile(self.config.gpu_profile, stage),
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
        made = ArtifactRef(stage=stage, key=now.key, path=str(folder), digest=content_digest(manifest.files))
        self.found[stage] = made
        return made

    def data_inputs(self) -> tuple[StageInput, ...]:
        """Inputs of filter_dataset."""
        config, filters = self.config, self.config.filter_dataset
        if self.ask_hub:
            return filter_dataset_inputs(filters, config.dataset, config.base_model)
        if config.dataset.hub_id is None:
            files = filter_dataset_inputs(filters, config.dataset, None)
        else:
            files = pinned_dataset_inputs(config.dataset)
        if filters.max_tokens is None or config.base_model is None:
            return files
        return (*files, self.model_input(config.base_model, name="tokenizer"))

    def model_input(self, source: ModelSource, *, name: str) -> StageInput:
        """The base model as input of that name."""
        if self.ask_hub or source.hub_id is None:
            return named_model_input(source).model_copy(update={"name": name})
        return pinned_model_input(source, name=name)


def cached_stages(config: RunConfig) -> dict[StageName, str]:
    """For each stage of the run whether its result is there; a stage whose inputs are yet to be made runs.

    Asks nobody: what a branch of the hub is now, and so what starts from it, is not known.
    """
    lookup, rest = _Lookup(config, verify=False, ask_hub=False), "runs"
    try:
        _walk(lookup, config)
    except _NotCachedError as missing:
        rest = f"runs, unless {missing.stage} makes the same as before"
        if lookup.history.last(missing.stage) is None:
            rest = "runs"
    except BranchMayHaveMovedError as unknown:
        rest = str(unknown)
    except Exception as error:  # a source that cannot be had is for the system check to explain
        first_line = str(error).partition("\n")[0]
        return {stage: lookup.texts.get(stage, f"not known: {first_line}") for stage in config.stages}
    return {stage: lookup.texts.get(stage, rest) for stage in config.stages}


def finished_artifacts(config: RunConfig) -> dict[StageName, ArtifactRef] | None:
    """Every stage's artifact, each file compared with its manifest; None where a stage would have to run.

    Asks the hub where the run names a branch there.
    """
    try:
        lookup = _Lookup(config, verify=True, ask_hub=True)
        _walk(lookup, config)
    except Exception:  # whatever is missing or damaged: the run itself sees to it, and says so
        return None
    return lookup.found


def _walk(lookup: _Lookup, config: RunConfig) -> None:
    """The order of `flows.rlhf`, on results that are there; stops at the first that is not."""
    profile = config.gpu_profile
    pairs = lookup.result(config.filter_dataset, lookup.data_inputs())
    if config.build_base_model:
        inputs = build_base_model_inputs(pairs, config.tokenizer_file)
        model = start_model_input(lookup.result(config.build_base_model, inputs))
    elif config.base_model:
        model = lookup.model_input(config.base_model, name="start_model")
    if config.train_sft:
        batch = plan_batch(config.train_sft.global_batch_size, profile)
        model = start_model_input(lookup.result(config.train_sft, training_inputs(pairs, model), batch))
    batch = plan_batch(config.train_reward_model.global_batch_size, profile)
    reward_model = lookup.result(config.train_reward_model, training_inputs(pairs, model), batch)
    evaluation = config.evaluate_reward_model
    lookup.result(evaluation, evaluate_reward_model_inputs(evaluation, pairs, reward_model))
    training = config.train_policy
    batch = plan_batch(training.global_batch_size, profile, multiple_of=training.num_generations)
    policy = lookup.result(training, train_policy_inputs(pairs, model, reward_model), batch)
    lookup.result(config.evaluate_policy, evaluate_policy_inputs(pairs, model, policy, reward_model))
