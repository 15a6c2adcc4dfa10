"""What looks at a policy in training cost: prompts that train nothing, and answers that are only judged."""

import math

from containers.contracts.configs.parts.evidence import FILLER_TIMES, measured_of, num_held_out, steps_between_looks
from containers.contracts.configs.parts.judges import PeopleJudge
from containers.contracts.hardware import BatchPlan
from containers.contracts.schedule import ResolvedSchedule
from tasks.plan import estimates
from tasks.plan.estimates import TrainingLoad, Work
from tasks.plan.figures import Figure, PlanContext
from tasks.plan.inputs.data import Count
from tasks.plan.judges import judges_work, uncounted_judges
from tasks.plan.load import mean_prompt_tokens


def prompts_held_out(context: PlanContext) -> int:
    """Training prompts that only serve the looks; 0 without a judge, or where the number of prompts is unknown."""
    settings, prompts = context.config.train_policy.evidence, context.data.policy_train_prompts
    if settings is None or prompts is None or not context.config.judges_of_evidence:
        return 0
    return num_held_out(settings, prompts.value)


def prompts_that_train(context: PlanContext) -> Count | None:
    """The training prompts without those."""
    prompts = context.data.policy_train_prompts
    return None if prompts is None else prompts.less(Count(prompts_held_out(context), prompts.origin))


def looks_work(
    context: PlanContext, load: TrainingLoad, batch: BatchPlan, schedule: ResolvedSchedule | None
) -> tuple[int, Work]:
    """How many looks are due, and their work at most: each writes twice num_pairs answers, as the start model does.

    The judges compare all of them with the trusted policy's; at the start, half of the start model's with the others.
    """
    config, profile = context.config.train_policy, context.profile
    settings = config.evidence
    if schedule is None or settings is None or not prompts_held_out(context):
        return 0, Work()
    every = steps_between_looks(
        settings,
        num_steps=schedule.num_steps,
        completions_a_step=batch.global_batch_size / config.num_iterations,
    )
    num_looks, ranks = math.ceil(schedule.num_steps / every), profile.num_processes
    answers = 2 * settings.num_pairs * (1 + num_looks)
    rows = batch.per_device_batch_size * batch.gradient_accumulation_steps
    prompt = mean_prompt_tokens(context, config.max_prompt_length)
    written = estimates.generation_work(
        load.shape,
        profile,
        total=load.total,
        sequences=answers / ranks,
        batch=rows,
        prompt_tokens=prompt,
        max_tokens=config.max_completion_length,
    )
    tokens = answers * (prompt + config.max_completion_length)
    # Policy and start model, for the KL, and the reward models.
    found = Work(written.operations * ranks, written.seconds)
    for shape in (load.shape, load.shape, *(scorer.shape for scorer in context.scorers_of_policy)):
        found += estimates.forward_work(shape, profile, tokens=tokens, num_processes=ranks)
    found += judges_work(
        context,
        context.config.judges_of_evidence,
        num_pairs=2 * settings.num_pairs * num_looks + settings.num_pairs,
        prompt_tokens=prompt,
        answer_tokens=config.max_completion_length,
        num_processes=ranks,
    )
    return num_looks, found


def meters_work(context: PlanContext, *, completions: int) -> Work:
    """Work in a step of the meters that need the reward model: states of a few answers, and their scores when padded.

    An answer is scored as it is and with as much filler as twice its length.
    """
    config, scorers = context.config.train_policy, context.scorers_of_policy
    if config.evidence is None or not scorers:
        return Work()
    prompt, own = mean_prompt_tokens(context, config.max_prompt_length), config.max_completion_length
    tokens = measured_of(completions) * (3 * prompt + (1 + 1 + 1 + FILLER_TIMES) * own)
    ranks = context.profile.num_processes
    return estimates.forward_work(scorers[0].shape, context.profile, tokens=tokens, num_processes=ranks)


def looks_figure(context: PlanContext, num_looks: int, looks: Work, training: Work | None) -> tuple[Figure, ...]:
    """The number of looks with their share of the time, and what people judge meanwhile; none without a look."""
    if not num_looks or training is None:
        return ()
    share = looks.seconds / (looks.seconds + training.seconds)
    judges = context.config.judges_of_evidence
    words = [f"at most {share:.1%} of the time", uncounted_judges(context, judges)]
    found = Figure("looks", num_looks, "looks", "estimated", ", ".join(filter(None, words)))
    settings, decides = context.config.train_policy.evidence, judges[0]
    if settings is None or not isinstance(decides, PeopleJudge):
        return (found,)
    each = settings.num_pairs * num_looks
    note = f"for each of {decides.num_people}: " if decides.num_people > 1 else ""
    note += f"{settings.num_pairs} at a look, at most {2 * each:,} in all; the run waits each time"
    return (found, Figure("people_judge", each, "pairs", "estimated", note))
