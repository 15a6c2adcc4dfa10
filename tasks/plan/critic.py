"""Memory and work of PPO's critic, beside the policy that it advises."""

import dataclasses

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.hardware import BatchPlan
from tasks.plan import estimates
from tasks.plan.estimates import TrainingLoad, Work
from tasks.plan.figures import PlanContext
from tasks.plan.inputs.model_shape import lora_parameters, total_parameters


def critic_memory(context: PlanContext, config: TrainPolicyConfig, load: TrainingLoad) -> dict[str, int]:
    """Bytes of the critic: its adapters with their gradients and moments, and weights that it does not share.

    Its activations come after the policy's, and are no larger.
    """
    if not config.has_critic:
        return {}
    start = config.critic.start_of(config.rewards)
    trained = load.shape.hidden_size
    if start != "policy_features":
        # A reward model of the run has adapters of its own size.
        own = context.config.train_reward_model.lora if start == "reward_model" else config.critic.lora
        trained += lora_parameters(load.shape, own or config.critic.lora)
    parts = {"critic": trained * estimates.TRAINED_BYTES}
    if start != "policy_features" and not _shares(context, config):
        total = total_parameters(load.shape, head="score")
        parts["critic's own weights"] = estimates.inference_memory(total, context.profile)
    return parts


def _shares(context: PlanContext, config: TrainPolicyConfig) -> bool:
    """Whether it is an adapter on the policy's frozen weights, as far as the configuration says."""
    if config.lora is None:
        return False
    if config.critic.start_of(config.rewards) == "start_model":
        return True
    training = context.config.train_reward_model
    return context.config.trains_reward_model and training.lora is not None


def critic_work(config: TrainPolicyConfig, load: TrainingLoad, context: PlanContext, batch: BatchPlan) -> Work:
    """Work of the critic in one step: forward and backward, or its head alone on the policy's states."""
    if not config.has_critic:
        return Work()
    profile, count = context.profile, batch.global_batch_size
    if config.critic.start_of(config.rewards) == "policy_features":
        return estimates.forward_work(
            load.shape, profile, tokens=count * load.mean_tokens, num_processes=profile.num_processes
        )
    adapted = dataclasses.replace(load, uses_adapters=True)
    return estimates.training_work(adapted, profile, sequences=count)
