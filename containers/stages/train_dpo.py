"""train_dpo: train the policy on pairs, so that chosen completions become likelier than rejected ones."""

from containers.algorithms.preference_training import PreferenceTraining
from containers.contracts.outcome import Metric
from containers.harness.context import StageContext
from containers.training.program import run_training


def run(context: StageContext) -> tuple[Metric, ...]:
    """Train, verify, and save `model/` (merged) and, with LoRA, `adapter/`. Keeps the lowest eval_loss.

    Raises:
        BadConfigError: parts of the loss contradict each other, or a schedule cannot work; nothing was trained.
        BadDataError: no pair fits, or kto finds one prompt only.
        DivergedError: loss or gradient is not finite; names the step.
    """
    return run_training(context, PreferenceTraining(context))
