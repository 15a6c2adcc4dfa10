"""train_policy: train the policy against a certified reward model, with the configured algorithm."""

from containers.algorithms.policy_training import PolicyTraining
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.outcome import Metric
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.training.program import run_training


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
    return run_training(context, PolicyTraining(context))
