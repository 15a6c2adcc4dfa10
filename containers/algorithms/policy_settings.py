"""What of a policy training's configuration contradicts itself, and its schedule."""

from containers.contracts.configs.parts.critic import critic_contradictions
from containers.contracts.configs.parts.policy_algorithms import contradictions
from containers.contracts.configs.parts.rewards import reward_contradictions
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.schedule import ResolvedSchedule, ScheduleError, plan_minibatches, resolve_schedule
from containers.harness.errors import BadConfigError


def refuse_contradictions(config: TrainPolicyConfig) -> None:
    """Raise BadConfigError with all that contradicts itself."""
    wrong = [
        *contradictions(
            config.method, num_generations=config.num_generations, adapts_beta=config.adaptive_kl is not None
        ),
        *reward_contradictions(config.rewards),
        *(
            (f"critic.{key}".rstrip("."), text)
            for key, text in critic_contradictions(config.critic, config.rewards, has_critic=config.has_critic)
        ),
    ]
    if wrong:
        raise BadConfigError("\n".join(f"train_policy.{key}: {text}" for key, text in wrong))


def resolve_policy_schedule(config: TrainPolicyConfig, *, num_prompts: int, global_batch_size: int) -> ResolvedSchedule:
    """Return the schedule with every number filled in.

    Raises:
        BadConfigError: the schedule cannot work in this number of steps, or a rollout has no whole minibatches.
    """
    epochs = config.num_iterations
    try:
        plan_minibatches(config.rollout_batch_size, global_batch_size=global_batch_size, epochs=epochs)
    except ScheduleError as error:
        raise BadConfigError(f"train_policy: {error}") from error
    try:
        return resolve_schedule(
            config.schedule, num_examples=num_prompts * config.num_generations, global_batch_size=global_batch_size
        )
    except ScheduleError as error:
        raise BadConfigError(f"train_policy.schedule: {error}") from error
