"""Whether a retraining has anything to decide: the stage keys up to the judgement, beside those of the last decision.

Nothing is started, no artifact is opened. What a stage made last time is believed by the digest in the decision, so the
answer is the same after the challenger's artifacts have left the store.
"""

from collections.abc import Mapping
from typing import Any

from containers.contracts.names import StageName
from containers.contracts.spec import ArtifactRef, StageInput
from containers.formatting import moment
from tasks.champions.record import RequestedStage
from tasks.champions.retraining import Retraining
from tasks.champions.text import decision_line
from tasks.config.run import RunConfig
from tasks.config.sources import ModelSource
from tasks.pipeline.inputs import named_model_input
from tasks.pipeline.lookup import asked_of
from tasks.pipeline.stages import OF_THE_POLICY, Made, Stage, required_config, walk
from tasks.run.runtime import code_identity
from tasks.store.history import why_it_runs


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
        _compare_to_reward_model(retraining.config, last.asked)
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
    asked = {**last.asked, **judged.asked}
    try:
        made = _compare_to_reward_model(retraining.config, asked)
        _compare_policy(retraining.config, asked, made, retraining.book("reward_model").artifact(champion.model))
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


class _Comparison:
    """Resolves each stage by what was asked for last time; stops at the first stage that is asked otherwise."""

    def __init__(self, config: RunConfig, asked: Mapping[StageName, RequestedStage]) -> None:
        self._config = config
        self._asked = asked
        self._code = code_identity(config.runtime.kind, image=config.image, store_dir=config.store_dir.resolve())

    def made(self, stage: Stage, made: Made) -> ArtifactRef:
        """What the stage made last time, believed by its digest.

        Raises:
            _ChangedError: it is asked for something else now.
        """
        config, inputs = required_config(self._config, stage.name), stage.inputs(self._config, made, True)
        memory = asked_of(self._config, config, inputs, code=self._code)
        before = self._asked.get(stage.name)
        if before is None or before.memory.key != memory.key:
            why = why_it_runs(stage.name, before.memory if before else None, memory)
            raise _ChangedError(f"{stage.name}: {why}")
        folder = self._config.store_dir / "artifacts" / stage.name / memory.key
        return ArtifactRef(stage=stage.name, key=memory.key, path=str(folder), digest=before.digest)

    def named(self, stage: Stage, source: ModelSource) -> StageInput:
        """The base model, at the commit that its branch has now."""
        return named_model_input(source)


def _compare_to_reward_model(config: RunConfig, asked: Mapping[StageName, RequestedStage]) -> dict[str, Any]:
    """Through the certificate of the reward model; what is known then, by role.

    Raises:
        _ChangedError: a stage is asked for something else than last time.
    """
    made: dict[str, Any] = {}
    for stage, _ in walk(config, _Comparison(config, asked), made=made):
        if stage.name is StageName.EVALUATE_REWARD_MODEL:
            break
    return made


def _compare_policy(
    config: RunConfig, asked: Mapping[StageName, RequestedStage], made: Mapping[str, Any], reward_model: ArtifactRef
) -> None:
    """Through the evaluation of the policy that is trained against that reward model.

    Raises:
        _ChangedError: a stage is asked for something else than last time.
    """
    known = {**made, "reward_model": reward_model}
    for _ in walk(config, _Comparison(config, asked), made=known, stages=OF_THE_POLICY):
        pass
