"""Another reward model as a judge: of two completions the one with the higher score is better."""

from pathlib import Path

from containers.contracts.certificate import TEST_SUITE, Certificate
from containers.contracts.configs.parts.judges import OtherRewardModel
from containers.contracts.digests import DamagedArtifactError, read_manifest
from containers.contracts.names import CERTIFICATE_FILE, JUDGE_INPUT
from containers.formatting import percent, sample_size
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError
from containers.judges.base import StartedJudge, rows_at_a_time, trained_by_rewards
from containers.judges.values import ValueJudge
from containers.models.loading import reward_model_folder
from containers.rewards.base import Rewarding
from containers.rewards.reward_model import ModelReward, load_scorer
from containers.rollouts.prompts import check_lengths
from containers.scoring.scorer import score_head_sha256


def start(context: StageContext, config: Rewarding, judge: OtherRewardModel) -> StartedJudge:
    """Load the model with its certificate, and see whether it is the one that trained the policy.

    Raises:
        MissingPrerequisiteError: the model or its certificate is missing or damaged.
        BadConfigError: the longest conversation does not fit the model.
    """
    role = f"{JUDGE_INPUT}_{judge.name}"
    scorer = load_scorer(context, batch_size=rows_at_a_time(context, config), role=role)
    check_lengths(config, max_positions=scorer.max_length, name=f"judge {judge.name}")
    origin = context.input(role).origin or context.input(role).digest
    certified = "no certificate of it is named"
    if judge.certificate is not None:
        certified = _certified(context.input_path(f"{role}_certificate"))
    return ValueJudge(
        ModelReward(scorer, role=role),
        shown=f"the reward model {origin}; {certified}{_shared_data(context, role)}",
        part=_part(context, config, role),
    )


def _certified(folder: Path) -> str:
    """Return what its certificate says, in a few words."""
    path = folder / CERTIFICATE_FILE
    try:
        found = Certificate.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise MissingPrerequisiteError(f"The certificate of a judge, {path}, cannot be read: {error}.") from error
    suite = next((suite for suite in found.suites if suite.name == TEST_SUITE), found.suites[0])
    if suite.score is None:
        return "its certificate has no accuracy"
    return f"its certificate: {percent(suite.score.value)} right on {sample_size(suite.score, 'pairs')}"


def _shared_data(context: StageContext, role: str) -> str:
    """Return whether it learnt from the very pairs of a reward model of this run, as a clause; empty: not known."""
    own = [item.name for item in context.spec.inputs if item.name.startswith("reward_model")]
    known = {digest for name in own for digest in _pairs_of(context.input_path(name))}
    is_shared = known & _pairs_of(context.input_path(role))
    return (
        "; it learnt from the same pairs as the run's own reward model, and may share its errors" if is_shared else ""
    )


def _pairs_of(folder: Path) -> set[str]:
    """Return the digest of the pairs that a reward model learnt from; none where no manifest of ours says it."""
    try:
        lineage = read_manifest(folder).lineage
    except DamagedArtifactError:
        return set()
    return {entry.digest for entry in lineage if entry.name == "pairs"}


def _part(context: StageContext, config: Rewarding, role: str) -> str:
    """Return whether it is a reward model of the training, by its files or by its score head."""
    head = score_head_sha256(reward_model_folder(context.input_path(role)))
    own = [item for item in context.spec.inputs if item.name.startswith("reward_model")]
    for item in own:
        is_same_file = item.digest == context.input(role).digest
        if is_same_file or score_head_sha256(reward_model_folder(context.input_path(item.name))) == head:
            how = "" if is_same_file else " by its score head, under another name"
            if trained_by_rewards(config):
                return f"it is the reward model that the policy was trained to please{how}"
            return f"it is the run's own reward model{how}, which learnt from the pairs that the policy learnt from"
    return ""
