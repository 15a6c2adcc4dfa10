"""Operations and time of supervised and reward-model training: updates and evaluations."""

import math

from containers.contracts.hardware import BatchPlan, GpuProfile
from containers.contracts.schedule import ResolvedSchedule
from tasks.plan import estimates
from tasks.plan.estimates import TrainingLoad, Work
from tasks.plan.figures import PlanContext
from tasks.plan.head import Head

# Time per weight of clipping, AdamW and clearing the gradient, on one core.
_OPTIMIZER_SECONDS = 6e-9


def training_work(
    context: PlanContext,
    load: TrainingLoad | None,
    batch: BatchPlan,
    schedule: ResolvedSchedule | None,
    *,
    head: Head | None,
    sequences_per_example: int,
    sequences_per_pair: int,
) -> Work | None:
    """All updates, and every evaluation on the validation pairs, the last step included.

    Args:
        head: of a language model; None for a reward model.
    """
    if load is None or schedule is None:
        return None
    sequences = schedule.num_steps * batch.global_batch_size * sequences_per_example
    updates = estimates.training_work(load, context.profile, sequences=sequences)
    updates += optimizer_work(load, context.profile, num_steps=schedule.num_steps)
    evaluated = context.data.validation_pairs.value * sequences_per_pair if context.data.validation_pairs else 0
    ranks = context.profile.num_processes
    evaluation = estimates.forward_work(
        load.shape, context.profile, tokens=evaluated * load.mean_tokens, num_processes=ranks
    )
    if head is not None:
        updates += head.training_work(tokens=sequences * load.judged_tokens)
        evaluation += head.judging_work(tokens=evaluated * load.judged_tokens)
    return updates + evaluation * math.ceil(schedule.num_steps / schedule.eval_steps)


def optimizer_work(load: TrainingLoad, profile: GpuProfile, *, num_steps: int) -> Work:
    """Time of the optimizer on a CPU, where it reads and writes all trained weights; nothing on a GPU.

    Its operations are left out: memory decides the time.
    """
    if profile.num_gpus:
        return Work()
    return Work(0.0, num_steps * load.trainable * _OPTIMIZER_SECONDS / profile.num_threads)
