"""Whether a retraining has anything to decide: the stage keys up to the judgement, beside those of the last decision.

Nothing is started, no artifact is opened. What a stage made last time is believed by the digest in the decision, so the
answer is the same after the challenger's artifacts have left the store.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from containers.contracts.configs.stages import StageConfig
from containers.contracts.hardware import BatchPlan
from containers.contracts.identity import SINGLE_BATCH, config_profile, identity_key, policy_batch, stage_identity
from containers.contracts.names import StageName
from containers.contracts.schedule import plan_batch
from containers.contracts.spec import ArtifactRef, StageInput
from containers.formatting import moment
from tasks.champions.record import AskedStage
from tasks.champions.retraining import Retraining
from tasks.champions.text import decision_line
from tasks.config.run import RunConfig
from tasks.pipeline.inputs import (
    build_base_model_inputs,
    evaluate_policy_inputs,
    evaluate_reward_model_inputs,
    filter_dataset_inputs,
    named_model_input,
    start_model_input,
    train_policy_inputs,
    training_inputs,
    whole_filter_config,
)
from tasks.run.runtime import code_identity
from tasks.store.history import stage_memory
from tasks.store.why import why_it_runs


class _ChangedError(Exception):
    """A stage would be asked for something else than last time; the message says what."""


def why_retrain(retraining: Retraining) -> str:
    """What is new since the last decision; empty where all is the same, and so nothing is to be done.

    Raises:
        ChampionGoneError: the champions' file cannot be read.
        SourceError: data or model cannot be had.
        LaunchError: the stage image cannot be asked for.
    """
    why = why_new_reward_model(retraining)
    return why or (_why_new_policy(retraining) if retraining.with_policy else "")


def why_new_reward_model(retraining: Retraining) -> str:
    """What is new about the reward model; empty where the last decision is about this very challenger.

    Who reigns is not asked: a challenger that a person rolled back from does not come back by itself.
    """
    last = retraining.book("reward_model").read().last_asked
    if last is None:
        return "nothing was decided yet"
    if last.rules != retraining.rules_text("reward_model"):
        return "the gate or the demands on a challenger changed"
    try:
        _Walk(retraining.config, last.asked).to_reward_model()
    except _ChangedError as changed:
        return str(changed)
    return ""


def _why_new_policy(retraining: Retraining) -> str:
    """The same of the policy, where the reward model is no new one."""
    record, policies = retraining.book("reward_model").read(), retraining.book("policy").read()
    champion, last, judged = record.champion, record.last_asked, policies.last_asked
    if champion is None or last is None:
        return ""
    if judged is None:
        return "no policy was decided on yet"
    if judged.rules != retraining.rules_text("policy"):
        return "the gate or the demands on a challenging policy changed"
    walk = _Walk(retraining.config, {**last.asked, **judged.asked})
    try:
        walk.to_policy(*walk.to_reward_model(), retraining.book("reward_model").artifact(champion.model))
    except _ChangedError as changed:
        return str(changed)
    return ""


def nothing_new_text(retraining: Retraining) -> str:
    """What a retraining says that has nothing to do: who is champion, and what was decided last, on the same things."""
    record = retraining.book("reward_model").read()
    last, champion = record.last_asked, record.champion
    reigns = f"{champion.shown} is champion" if champion else "there is no champion"
    parts = [
        f"Nothing changed since the last decision: same data, same settings, same programs. {record.name}: {reigns}. "
        "Nothing was started.",
        f"The last decision, of {moment(last.at)}: {decision_line(last)}" if last else "",
        retraining.never_new,
    ]
    return " ".join(part for part in parts if part)


class _Walk:
    """The order of `flows.rlhf`, on what was asked for last time; stops at the first stage that is asked otherwise."""

    def __init__(self, config: RunConfig, asked: Mapping[StageName, AskedStage]) -> None:
        self._config = config
        self._asked = asked
        self._code_digest = code_identity(config.runtime.kind, image=config.image).digest

    def to_reward_model(self) -> tuple[ArtifactRef, StageInput]:
        """Through the certificate of the reward model; the pairs and the model that training starts from."""
        config, profile = self._config, self._config.gpu_profile
        suites = config.evaluate_reward_model.suites
        data = filter_dataset_inputs(config.filter_dataset, config.dataset, config.base_model, suites)
        pairs = self._made(whole_filter_config(config.filter_dataset, config.dataset, suites), data)
        if config.base_model is not None:
            model = named_model_input(config.base_model)
        elif config.build_base_model is not None:
            inputs = build_base_model_inputs(pairs, config.tokenizer_file)
            model = start_model_input(self._made(config.build_base_model, inputs))
        if config.train_sft is not None:
            batch = plan_batch(config.train_sft.global_batch_size, profile)
            model = start_model_input(self._made(config.train_sft, training_inputs(pairs, model), batch))
        batch = plan_batch(config.train_reward_model.global_batch_size, profile)
        reward_model = self._made(config.train_reward_model, training_inputs(pairs, model), batch)
        evaluation = config.evaluate_reward_model
        self._made(evaluation, evaluate_reward_model_inputs(evaluation, pairs, reward_model))
        return pairs, model

    def to_policy(self, pairs: ArtifactRef, model: StageInput, reward_model: ArtifactRef) -> None:
        """Through the certificate of the policy that is trained against that reward model."""
        training = self._config.train_policy
        batch = policy_batch(training, self._config.gpu_profile)
        policy = self._made(training, train_policy_inputs(pairs, model, reward_model), batch)
        self._made(self._config.evaluate_policy, evaluate_policy_inputs(pairs, model, policy, reward_model))

    def _made(self, config: StageConfig, inputs: Sequence[StageInput], batch: BatchPlan = SINGLE_BATCH) -> ArtifactRef:
        stage = StageName(config.stage)
        identity = stage_identity(
            config,
            seed=self._config.run.seed,
            inputs=inputs,
            code_digest=self._code_digest,
            profile=config_profile(self._config.gpu_profile, config),
            batch=batch,
        )
        memory = stage_memory(identity, key=identity_key(identity), inputs=tuple(inputs))
        before = self._asked.get(stage)
        if before is None or before.memory.key != memory.key:
            raise _ChangedError(f"{stage}: {why_it_runs(stage, before.memory if before else None, memory)}")
        folder = self._config.store_dir / "artifacts" / stage / memory.key
        return ArtifactRef(stage=stage, key=memory.key, path=str(Path(folder)), digest=before.digest)
