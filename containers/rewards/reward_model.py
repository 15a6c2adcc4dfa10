"""The certified reward model as a reward: its score, optionally normalised; refuses a model without certificate.

It scores whole conversations with the scorer of the evaluation stages, so that a completion has one score, up to the
rounding that the certificate states. TRL alone would score chat completions in a template that hides a cut-off, and
silently replace NaN by a zero advantage.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from containers.contracts.certificate import ScoreStatistics
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.rewards import RewardModelTerm
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import CERTIFICATE_INPUT
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.spread import Spread
from containers.evals.score_statistics import normalisation_of, normalised
from containers.harness.context import StageContext
from containers.models.loading import load_reward_model, load_tokenizer, position_limit, reward_model_folder
from containers.models.offloading import offload, present
from containers.models.over_gpus import reward_model_over_gpus
from containers.models.shared_base import adapted_classifier, adapter_on
from containers.rewards.base import Answered, Reward, Rewarding, SeveralRewards, StateReward, Value
from containers.rewards.certified import require_certificate
from containers.rollouts.prompt_templates import note_reward_model_template
from containers.rollouts.prompts import PolicyPrompts, check_lengths
from containers.scoring.on_base import hold_on_base
from containers.scoring.scorer import RewardScorer, classifier_of, score_head_sha256

_REWARD_MODEL_USED_FILE = "reward_model_used.json"


class ModelReward(StateReward):
    """Reward from a reward model's score of the whole conversation.

    Args:
        normalisation: mean and standard deviation that turn a score into a reward; None: the score is the reward.
        role: the stage's input with the model.
    """

    def __init__(
        self, scorer: RewardScorer, *, normalisation: ScoreStatistics | None = None, role: str = "reward_model"
    ) -> None:
        self._scorer = scorer
        self._normalisation = normalisation
        self._role = role

    def scores(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[float]:
        """Return the score of each whole conversation; raises the errors of the scorer's `score_written`."""
        with present(self._scorer.model):
            return self._scorer.score_written(conversations)

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return the score of each completion; raises the errors of the scorer's `score_written`."""
        return list(self.scored(answered))

    def scored(self, answered: Sequence[Answered]) -> list[float]:
        """Return the score of each completion; raises the errors of the scorer's `score_written`."""
        return self.scores([_whole(one) for one in answered])

    def fits(self, answered: Answered) -> bool:
        """Whether the model can score the whole conversation."""
        return self._scorer.fits(_whole(answered))

    def states(self, answered: Sequence[Answered]) -> torch.Tensor:
        """Return the states to which the score head is applied: [N, hidden], float32 on the CPU."""
        with present(self._scorer.model):
            return self._scorer.states([_whole(one) for one in answered])

    def offload(self) -> int:
        """Keep the model in host memory while it is not used."""
        return offload(self._scorer.model.requires_grad_(False))

    def rewards(self, values: Sequence[float]) -> list[float]:
        """Return the scores, or their distances above the mean in standard deviations."""
        return list(values) if self._normalisation is None else normalised(values, self._normalisation)

    def of_rewards(self, rewards: Sequence[float]) -> list[float]:
        """Return the scores that give these rewards."""
        by = self._normalisation
        return [reward if by is None else reward * by.standard_deviation + by.mean for reward in rewards]

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
        item = context.input(self._role)
        # Of the exported model, which the certificate is about.
        head = score_head_sha256(reward_model_folder(context.input_path(self._role)))
        context.recorder.note(f"Rewards come from {item.origin or item.digest}; its score head is sha256:{head[:16]}…")
        if self._role == "reward_model":
            text = json.dumps({"digest": item.digest, "score_head_sha256": head}, indent=2)
            (context.output / _REWARD_MODEL_USED_FILE).write_text(text, encoding="utf-8")

    def close(self) -> None:
        """End the scorer's programs on further GPUs."""
        self._scorer.close()


class AdapterReward(ModelReward):
    """Reward from a reward model that is an adapter on the start model's own weights, as soon as these are there.

    Args:
        make: makes the scorer from the start model.
        normalisation: as of `ModelReward`, and so is `role`.
    """

    def __init__(
        self,
        make: Callable[[PreTrainedModel], RewardScorer],
        *,
        normalisation: ScoreStatistics | None,
        role: str,
    ) -> None:
        self._make = make
        self._normalisation = normalisation
        self._role = role

    def on_base(self, base: PreTrainedModel) -> None:
        """Put the adapter on `base`."""
        self._scorer = self._make(base)

    def offload(self) -> int:
        """Leave all to the base: the adapters are small."""
        return 0

    def close(self) -> None:
        """Nothing to end."""


def _whole(one: Answered) -> list[Mapping[str, str]]:
    return [*one.conversation, {"role": "assistant", "content": one.text}]


class SeveralModels(SeveralRewards):
    """Reward from the normalised scores of several reward models.

    Where they disagree, the policy may have left what any of them knows; so the lowest, or the mean less the spread,
    gives less for that (Coste et al. 2023, arXiv:2310.02743).

    Args:
        members: at least two; each normalises its scores.
        spread_weight: for `mean_less_spread`.
    """

    def __init__(self, members: Sequence[ModelReward], *, combine: str, spread_weight: float) -> None:
        self.members: Sequence[ModelReward] = members
        self._combine = combine
        self._spread_weight = spread_weight

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return the combined, normalised score of each completion; errors as of `ModelReward.values`."""
        of_members = [member.rewards(member.scored(answered)) for member in self.members]
        self.spreads = torch.tensor(of_members, dtype=torch.float64).std(dim=0).tolist()
        return list(self.together(of_members))

    def together(self, of_members: Sequence[Sequence[float]]) -> list[float]:
        """Return the combined score of each completion; `of_members` is [models][completions], normalised, no unit."""
        scores = torch.tensor(of_members, dtype=torch.float64)
        if self._combine == "own":
            found = scores[0]
        elif self._combine == "worst":
            found = scores.min(dim=0).values
        else:
            found = scores.mean(dim=0)
            if self._combine == "mean_less_spread":
                found = found - self._spread_weight * scores.std(dim=0)
        return [float(value) for value in found]

    def close(self) -> None:
        """End what the members started."""
        for member in self.members:
            member.close()

    def on_base(self, base: PreTrainedModel) -> None:
        """Give the base to each member."""
        for member in self.members:
            member.on_base(base)

    def offload(self) -> int:
        """Keep the models of the members in host memory."""
        return sum(member.offload() for member in self.members)

    def rounding(self, values: Sequence[float]) -> float:
        """Return the largest rounding of a member, where its own score is as far from its mean as theirs together."""
        return max(member.rounding(member.of_rewards(values)) for member in self.members)

    def scorable(self, context: StageContext, prompts: PolicyPrompts) -> PolicyPrompts:
        """Return the prompts that every member can score."""
        for member in self.members:
            prompts = member.scorable(context, prompts)
        return prompts

    def record(self, context: StageContext) -> None:
        """Record each reward model, and how their scores are combined."""
        for member in self.members:
            member.record(context)
        how = {
            "mean": "their mean",
            "worst": "the lowest",
            "own": "that of the run's own",
            "mean_less_spread": f"their mean less {self._spread_weight:g} times their standard deviation",
        }[self._combine]
        context.recorder.note(f"Of the normalised scores of {len(self.members)} reward models, {how} is the reward.")


def start(context: StageContext, config: Rewarding, term: RewardModelTerm) -> Reward:
    """Load the stage's reward models, with positions for the longest conversation; for training, each is certified."""
    own, *others = (
        _member(context, config, term, ending=ending)
        for ending in ("", *(f"_{number}" for number in range(2, 2 + len(term.others))))
    )
    if not others:
        return own
    return SeveralModels([own, *others], combine=term.combine, spread_weight=term.spread_weight)


def _member(context: StageContext, config: Rewarding, term: RewardModelTerm, *, ending: str) -> ModelReward:
    """Return one reward model: an adapter on the policy's start model if it was trained from that, else a whole one."""
    role = f"reward_model{ending}"
    if isinstance(config, EvaluatePolicyConfig):
        scorer = load_scorer(context, batch_size=config.batch_size, role=role)
    else:
        require_certificate(context, role=role, certificate=f"{CERTIFICATE_INPUT}{ending}")
        if config.keeps_start_model:
            adapter = adapter_on(context.input_path(role), context.input("start_model").digest)
            if adapter is not None:
                base = "the policy's own frozen weights" if config.lora is not None else "the reference's weights"
                context.recorder.note(f"The reward model {context.input(role).origin} is an adapter on {base}.")
                make = partial(_scorer_on_base, context, config, adapter, role=role)
                return AdapterReward(make, normalisation=_normalisation(context, term, role=role), role=role)
        scorer = load_scorer(context, batch_size=context.spec.batch.per_device_batch_size, role=role)
    check_lengths(config, max_positions=scorer.max_length, name="reward model")
    return ModelReward(scorer, normalisation=_normalisation(context, term, role=role), role=role)


def _scorer_on_base(
    context: StageContext, config: TrainPolicyConfig, adapter: Path, base: PreTrainedModel, *, role: str
) -> RewardScorer:
    """Return the scorer of the adapter on the start model; its tokens are those of its own tokenizer."""
    model = adapted_classifier(base, adapter)
    folder = reward_model_folder(context.input_path(role))
    tokenizer = load_tokenizer(folder, origin=context.input(role).origin)
    classifier_of(model).config.get_text_config().pad_token_id = tokenizer.pad_token_id
    found = policy_scorer(
        model,
        tokenizer,
        batch_size=context.spec.batch.per_device_batch_size,
        batch_tokens=config.score_batch_tokens,
    )
    check_lengths(config, max_positions=found.max_length, name="reward model")
    held = config.quantization or str(compute_dtype(context.spec.profile)).removeprefix("torch.")
    context.recorder.note(hold_on_base(context.input_path(role), found, base=held))
    return found


def _normalisation(context: StageContext, term: RewardModelTerm, *, role: str) -> ScoreStatistics | None:
    """Return mean and standard deviation of the reward model's scores if rewards are normalised by them; note them."""
    if term.normalise != "validation":
        return None
    item = context.input(role)
    found = normalisation_of(reward_model_folder(context.input_path(role)), origin=item.origin)
    context.recorder.note(
        f"Rewards are scores minus their mean, {found.mean:.4g}, divided by their standard deviation, "
        f"{found.standard_deviation:.4g} ({found.num_scores:,} scores: {found.scores_of})."
    )
    return found


def load_scorer(context: StageContext, *, batch_size: int, role: str = "reward_model") -> RewardScorer:
    """Load the scorer of a reward model of the stage; its maximum length is that model's positions.

    Args:
        batch_size: maximum conversations per forward; the stage's `score_batch_tokens` limits them too.
        role: the stage's input with the model.

    Raises:
        MissingPrerequisiteError: the input is missing or damaged, or has no score head.
    """
    folder = reward_model_folder(context.input_path(role))
    profile = context.spec.profile
    tokenizer = load_tokenizer(folder, origin=context.input(role).origin)
    config = context.spec.config
    batch_tokens = config.score_batch_tokens if isinstance(config, TrainPolicyConfig | EvaluatePolicyConfig) else None
    if isinstance(config, EvaluatePolicyConfig):
        model, spread = reward_model_over_gpus(folder, profile)
    else:
        model, spread = load_reward_model(folder, dtype=compute_dtype(profile), device=compute_device(profile)), None
    return policy_scorer(model, tokenizer, batch_size=batch_size, batch_tokens=batch_tokens, spread=spread)


def policy_scorer(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    batch_size: int,
    batch_tokens: int | None = None,
    spread: Spread[PreTrainedModel] | None = None,
) -> RewardScorer:
    """Return the scorer of the policy stages; its maximum length is the reward model's positions."""
    return RewardScorer(
        model,
        tokenizer,
        max_length=position_limit(classifier_of(model)),
        batch_size=batch_size,
        batch_tokens=batch_tokens,
        spread=spread,
    )
