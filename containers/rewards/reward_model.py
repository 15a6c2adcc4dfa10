"""The certified reward model as a reward: its score, optionally normalised; refuses a model without certificate.

It scores whole conversations with the scorer of the evaluation stages, so that a completion has one score, up to the
rounding that the certificate states. TRL alone would score chat completions in a template that hides a cut-off, and
silently replace NaN by a zero advantage.
"""

import json
from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from containers.contracts.certificate import Certificate, ScoreStatistics
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.rewards import RewardModelTerm
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import CERTIFICATE_FILE, CERTIFICATE_INPUT
from containers.distributed.devices import compute_device, compute_dtype
from containers.evals.score_statistics import normalisation_of, normalised
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError
from containers.models.loading import load_reward_model, load_tokenizer, position_limit, reward_model_folder
from containers.rewards.base import Answered, Reward, Rewarding, Value
from containers.rollouts.prompts import PolicyPrompts, check_lengths, note_reward_model_template
from containers.scoring.scorer import RewardScorer, score_head_sha256

_REWARD_MODEL_USED_FILE = "reward_model_used.json"


class ModelReward(Reward):
    """Reward from a reward model's score of the whole conversation.

    Args:
        normalisation: mean and standard deviation that turn a score into a reward; None: the score is the reward.
    """

    def __init__(self, scorer: RewardScorer, *, normalisation: ScoreStatistics | None = None) -> None:
        self._scorer = scorer
        self._normalisation = normalisation

    def scores(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[float]:
        """Return the score of each whole conversation; raises the errors of the scorer's `score_written`."""
        return self._scorer.score_written(conversations)

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return the score of each completion; raises the errors of the scorer's `score_written`."""
        answers = [{"role": "assistant", "content": one.text} for one in answered]
        whole = [[*one.conversation, answer] for one, answer in zip(answered, answers, strict=True)]
        return list(self.scores(whole))

    def rewards(self, values: Sequence[float]) -> list[float]:
        """Return the scores, or their distances above the mean in standard deviations."""
        return list(values) if self._normalisation is None else normalised(values, self._normalisation)

    def rounding(self, values: Sequence[float]) -> float:
        """Return the rounding of the model's number type at the largest score, at least at 1."""
        largest = max(1.0, max(map(abs, values), default=0.0))
        scale = 1.0 if self._normalisation is None else self._normalisation.standard_deviation
        return float(torch.finfo(self._scorer.model.dtype).eps) * largest / scale

    def scorable(self, context: StageContext, prompts: PolicyPrompts) -> PolicyPrompts:
        """Return prompts without tokens that lack a row in the reward model; note what its chat template loses."""
        lacking = note_reward_model_template(context, self._scorer, prompts.prompts)
        return prompts.without(lacking, num_rows=self._scorer.num_rows, of="the reward model")

    def record(self, context: StageContext) -> None:
        """Record which reward model this is; the report compares it with the evaluated one."""
        item = context.input("reward_model")
        head = score_head_sha256(self._scorer.model)
        context.recorder.note(f"Rewards come from {item.origin or item.digest}; its score head is sha256:{head[:16]}…")
        text = json.dumps({"digest": item.digest, "score_head_sha256": head}, indent=2)
        (context.output / _REWARD_MODEL_USED_FILE).write_text(text, encoding="utf-8")


def start(context: StageContext, config: Rewarding, term: RewardModelTerm) -> Reward:
    """Load the stage's reward model, with positions for the longest conversation; for training, it is certified."""
    if isinstance(config, EvaluatePolicyConfig):
        scorer = load_scorer(context, batch_size=config.batch_size)
    else:
        require_certificate(context)
        scorer = load_scorer(context, batch_size=context.spec.batch.per_device_batch_size)
    check_lengths(config, max_positions=scorer.max_length, name="reward model")
    return ModelReward(scorer, normalisation=_normalisation(context, term))


def _normalisation(context: StageContext, term: RewardModelTerm) -> ScoreStatistics | None:
    """Return mean and standard deviation of the reward model's scores if rewards are normalised by them; note them."""
    if term.normalise != "validation":
        return None
    item = context.input("reward_model")
    found = normalisation_of(reward_model_folder(context.input_path("reward_model")), origin=item.origin)
    context.recorder.note(
        f"Rewards are scores minus their mean, {found.mean:.4g}, divided by their standard deviation, "
        f"{found.standard_deviation:.4g} ({found.num_scores:,} scores: {found.scores_of})."
    )
    return found


def load_scorer(context: StageContext, *, batch_size: int) -> RewardScorer:
    """Load the scorer of the stage's `reward_model` input; its maximum length is that model's positions.

    Args:
        batch_size: maximum conversations per forward; the stage's `score_batch_tokens` limits them too.

    Raises:
        MissingPrerequisiteError: the input is missing or damaged, or has no score head.
    """
    folder = reward_model_folder(context.input_path("reward_model"))
    profile = context.spec.profile
    model = load_reward_model(folder, dtype=compute_dtype(profile), device=compute_device(profile))
    tokenizer = load_tokenizer(folder, origin=context.input("reward_model").origin)
    config = context.spec.config
    batch_tokens = config.score_batch_tokens if isinstance(config, TrainPolicyConfig | EvaluatePolicyConfig) else None
    return policy_scorer(model, tokenizer, batch_size=batch_size, batch_tokens=batch_tokens)


def policy_scorer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: int, batch_tokens: int | None = None
) -> RewardScorer:
    """Return the scorer of the policy stages; its maximum length is the reward model's positions."""
    return RewardScorer(
        model, tokenizer, max_length=position_limit(model), batch_size=batch_size, batch_tokens=batch_tokens
    )


def require_certificate(context: StageContext) -> Certificate:
    """Return the certificate of the stage's `reward_model`.

    The orchestrator has already checked that its gate opened or was waived.

    Raises:
        MissingPrerequisiteError: the certificate is missing, unreadable, or that of another model or score head.
    """
    path = context.input_path(CERTIFICATE_INPUT) / CERTIFICATE_FILE
    try:
        certificate = Certificate.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise MissingPrerequisiteError(
            f"The certificate of the reward model, {path}, cannot be read: {error}. Run evaluate_reward_model again."
        ) from error
    item, model = context.input("reward_model"), certificate.model
    if model.digest != item.digest:
        raise MissingPrerequisiteError(
            f"The certificate is that of another reward model ({model.origin or model.digest}) than the one given "
            f"({item.origin or item.digest}). Run evaluate_reward_model on the model that gives the policy's rewards."
        )
    head = score_head_sha256(reward_model_folder(context.input_path("reward_model")))
    if model.score_head_sha256 != head:
        raise MissingPrerequisiteError(
            f"The reward model's score head is sha256:{head[:16]}…, the certificate is about "
            f"sha256:{model.score_head_sha256[:16]}…: the model was changed after it was judged. Run "
            f"evaluate_reward_model again."
        )
    return certificate
