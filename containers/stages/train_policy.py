"""train_policy: train the policy against a certified reward model, with the configured algorithm."""

from containers.algorithms.policy_training import PolicyTraining
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.outcome import Metric
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.training.program import run_training
from containers.training.sharding import divides_model


def run(context: StageContext) -> tuple[Metric, ...]:
    """Train the policy and save it merged and, with LoRA, as adapter.

    Raises:
        BadConfigError: a schedule, length or distribution cannot work; nothing was trained.
        BadDataError: no training prompt fits, or too few held-out prompts do.
        DivergedError: loss, gradient, reward or KL is not finite; names the step.
    """
    config = context.spec.config
    if not isinstance(config, TrainPolicyConfig):
        raise BadConfigError(f"train_policy was given the config of {config.stage}.")
    profile = context.spec.profile
    # A policy that generates would be gathered by every rank for each token.
    if divides_model(profile):
        raise BadConfigError(
            f"Profile {profile.name} has distribution fsdp, and the policy writes completions in every step, for which "
            "each rank needs the whole model. Train it on a profile with distribution ddp."
        )
    return run_training(context, PolicyTraining(context))
