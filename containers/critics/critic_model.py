"""What a critic starts as: the certified reward model or the start model, on the policy's own weights if it can."""

from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.utils import disable_dropout_in_model

from containers.contracts.configs.parts.rewards import RewardModelTerm
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.critics.critic import Critic
from containers.distributed.devices import compute_device, compute_dtype
from containers.evals.score_statistics import normalisation_of
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.models.adapters import apply_lora, trained_in_float32
from containers.models.loading import load_causal_model, load_reward_model, load_tokenizer, reward_model_folder
from containers.models.shared_base import adapted_classifier, adapter_on, sharing_classifier
from containers.models.weights import SCORE_HEAD
from containers.scoring.scorer import classifier_of, score_head_weight
from containers.training.kept_layers import keep_some

_ROLE = "reward_model"


def start_critic(
    context: StageContext, config: TrainPolicyConfig, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Critic:
    """Start the critic and note what it starts as.

    Args:
        policy: the start model, before it gets the policy's adapters.
        tokenizer: the policy's.

    Raises:
        BadConfigError: the reward model has another vocabulary than the policy.
        MissingPrerequisiteError: a model is missing or damaged.
    """
    start = config.critic.start_of(config.rewards)
    shared: dict[str, Any] = {
        "settings": config.critic,
        "note": context.recorder.note,
        "maximum_norm": config.optimizer.max_grad_norm,
    }
    if start == "policy_features":
        head = nn.Parameter(torch.zeros(1, policy.config.get_text_config().hidden_size, device=policy.device))
        context.recorder.note("The critic is a score head on the policy's own states.")
        return Critic(policy, policy.base_model, head, {SCORE_HEAD: head}, learns_states=False, **shared)
    if start == "reward_model":
        model, how = _reward_model(context, config, policy, tokenizer)
        shared["scale"], shared["shift"] = _reward_of_score(context, config)
    else:
        model, how = _start_model(context, config, policy)
    disable_dropout_in_model(model)
    model.train()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    context.recorder.note(f"The critic starts as {how}; {sum(map(torch.numel, trained.values())):,} parameters learn.")
    classifier = classifier_of(model)
    if config.gradient_checkpointing:
        classifier.gradient_checkpointing_enable({"use_reentrant": False})
        keep_some(classifier, config.gradient_checkpointing)
    backbone = getattr(classifier, classifier.base_model_prefix)
    return Critic(classifier, backbone, score_head_weight(model), trained, **shared)  # type: ignore[arg-type]


def _reward_model(
    context: StageContext, config: TrainPolicyConfig, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> tuple[PeftModel, str]:
    folder, origin = context.input_path(_ROLE), context.input(_ROLE).origin or context.input(_ROLE).digest
    own = load_tokenizer(reward_model_folder(folder), origin=origin)
    if own.get_vocab() != tokenizer.get_vocab():
        raise BadConfigError(
            f"train_policy.critic.model is reward_model, and the vocabulary of {origin} is not the policy's: the "
            "critic reads the policy's tokens. Use start_model or policy_features, or a reward model of the same "
            "family."
        )
    adapter = adapter_on(folder, context.input("start_model").digest)
    if config.lora is not None and adapter is not None:
        model = trained_in_float32(adapted_classifier(policy, adapter, learns=True))
        return model, f"the reward model {origin}, an adapter on the policy's own frozen weights"
    profile = context.spec.profile
    whole = load_reward_model(reward_model_folder(folder), dtype=compute_dtype(profile), device=compute_device(profile))
    return _with_adapters(whole, config), f"the reward model {origin}, a model of its own with new adapters"


def _start_model(context: StageContext, config: TrainPolicyConfig, policy: PreTrainedModel) -> tuple[PeftModel, str]:
    if config.lora is not None:
        found = _with_adapters(sharing_classifier(policy), config)
        return found, "the start model with a new score head, on the policy's own frozen weights"
    # Every weight of the policy moves, so the critic needs weights of its own.
    own = load_causal_model(
        context.input_path("start_model"),
        dtype=compute_dtype(context.spec.profile),
        device=policy.device,
        note=context.recorder.note,
    )
    return _with_adapters(sharing_classifier(own), config), "the start model with a new score head, a model of its own"


def _with_adapters(model: PreTrainedModel, config: TrainPolicyConfig) -> PeftModel:
    adapted = apply_lora(model, config.critic.lora, task_type="SEQ_CLS")
    if not isinstance(adapted, PeftModel):
        raise AssertionError("LoRA makes a PeftModel.")
    return adapted


def _reward_of_score(context: StageContext, config: TrainPolicyConfig) -> tuple[float, float]:
    """Return scale and shift that make the reward of the reward model's score."""
    term = next(term for term in config.rewards if isinstance(term, RewardModelTerm))
    if term.normalise != "validation":
        return term.weight, 0.0
    by = normalisation_of(reward_model_folder(context.input_path(_ROLE)), origin=context.input(_ROLE).origin)
    return term.weight / by.standard_deviation, -term.weight * by.mean / by.standard_deviation
