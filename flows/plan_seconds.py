"""How long the three training stages will take: their updates, evaluations, and what the policy writes."""

import math

from containers.contracts.hardware import BatchPlan
from containers.schedule import ResolvedSchedule
from flows import estimates
from flows.estimates import TrainingLoad
from flows.plan_figures import Known


def training_seconds(
    known: Known,
    load: TrainingLoad | None,
    batch: BatchPlan,
    schedule: ResolvedSchedule | None,
    *,
    sequences_per_example: int,
    sequences_per_pair: int,
) -> float | None:
    """All updates, and every evaluation on the validation pairs, the last step included."""
    if load is None or schedule is None:
        return None
    sequences = schedule.num_steps * batch.global_batch_size * sequences_per_example
    updates = estimates.training_seconds(load, known.profile, sequences=sequences)
    evaluated = known.data.validation_pairs.value * sequences_per_pair if known.data.validation_pairs else 0
    num_processes = known.profile.num_processes
    evaluation = estimates.forward_seconds(
        load.shape, known.profile, sequences=evaluated, max_tokens=load.max_tokens, num_processes=num_processes
    )
    evaluation += estimates.head_seconds(
        load.shape,
        known.profile,
        tokens=evaluated * load.judged_tokens,
        work="judge",
        num_processes=num_processes,
    )
    return updates + math.ceil(schedule.num_steps / schedule.eval_steps) * evaluation


def policy_seconds(
    known: Known,
    load: TrainingLoad,
    batch: BatchPlan,
    schedule: ResolvedSchedule | None,
    *,
    generated: int,
    tokens: int,
) -> float | None:
    """Generation, then policy, reference and reward forward for each generated batch; then the updates.

    The first two of these three have a language head.
    """
    if schedule is None:
        return None
    config, profile = known.config.train_policy, known.profile
    generation = estimates.generation_seconds(
        load.shape,
        profile,
        total=load.total,
        sequences=generated,
        batch=generated,
        max_tokens=config.max_completion_length,
    )
    forwards = 3 * estimates.forward_seconds(
        load.shape,
        profile,
        sequences=batch.global_batch_size,
        max_tokens=tokens,
        num_processes=profile.num_processes,
    )
    forwards += 2 * estimates.head_seconds(
        load.shape,
        profile,
        tokens=batch.global_batch_size * load.judged_tokens,
        work="judge",
        num_processes=profile.num_processes,
    )
    updates = estimates.training_seconds(load, profile, sequences=batch.global_batch_size)
    return schedule.num_steps * ((generation + forwards) / config.num_iterations + updates)
