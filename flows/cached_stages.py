"""Which stages of a run have their result already: the keys are computed as the run would, nothing is started."""

from collections.abc import Sequence

from containers.contracts.hardware import BatchPlan
from containers.contracts.names import MANIFEST_FILE, StageName
from containers.contracts.spec import ArtifactRef, StageInput
from containers.contracts.stage_configs import StageConfig
from containers.digests import content_digest, read_manifest
from containers.schedule import plan_batch
from flows.run_config import RunConfig
from tasks.code_identity import code_identity
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
from tasks.stage_key import SINGLE_BATCH, stage_key, stage_profile


class _NotCachedError(Exception):
    """The stage has no result yet, so the keys of those after it are not known."""


class _Lookup:
    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.code_digest = code_identity(config.runtime.kind, image=config.image).digest
        self.found: dict[StageName, str] = {}

    def result(self, config: StageConfig, inputs: Sequence[StageInput], batch: BatchPlan = SINGLE_BATCH) -> ArtifactRef:
        """The stage's artifact by its manifest; the run itself also compares every file before it reuses one."""
        stage = StageName(config.stage)
        profile = stage_profile(self.config.gpu_profile, stage)
        key = stage_key(
            config,
            seed=self.config.run.seed,
            inputs=inputs,
            code_digest=self.code_digest,
            profile=profile,
            batch=batch,
        )
        folder = self.config.output_dir.resolve() / "artifacts" / stage / key
        if not (folder / MANIFEST_FILE).is_file():
            raise _NotCachedError
        manifest = read_manifest(folder)
        self.found[stage] = f"reused, made {manifest.created_at}"
        return ArtifactRef(stage=stage, key=key, path=str(folder), digest=content_digest(manifest.files))


def cached_stages(config: RunConfig) -> dict[StageName, str]:
    """For each stage of the run whether its result is there; a stage whose inputs are yet to be made runs."""
    if config.dataset.hub_id or (config.base_model and config.base_model.hub_id):
        return dict.fromkeys(config.stages, "not known before the hub was asked")
    lookup = _Lookup(config)
    try:
        _walk(lookup, config)
    except _NotCachedError:
        pass
    except Exception as error:  # a source that cannot be had is for the system check to explain
        first_line = str(error).partition("\n")[0]
        return {stage: lookup.found.get(stage, f"not known: {first_line}") for stage in config.stages}
    return {stage: lookup.found.get(stage, "runs") for stage in config.stages}


def _walk(lookup: _Lookup, config: RunConfig) -> None:
    """The order of `flows.rlhf`, on results that are there; stops at the first that is not."""
    profile = config.gpu_profile
    pairs = lookup.result(
        config.filter_dataset, filter_dataset_inputs(config.filter_dataset, config.dataset, config.base_model)
    )
    if config.build_base_model:
        inputs = build_base_model_inputs(pairs, config.tokenizer_file)
        model = start_model_input(lookup.result(config.build_base_model, inputs))
    elif config.base_model:
        model = named_model_input(config.base_model)
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
