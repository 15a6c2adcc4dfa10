"""Plans of the three training stages: batch, schedule, parameters, memory, disk and time."""

import dataclasses
import math

from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.contracts.stage_configs import LoraSettings, TrainingSchedule
from containers.schedule import ResolvedSchedule, ScheduleError, plan_batch, resolve_schedule
from flows import estimates
from flows.config_errors import Mistake
from flows.estimates import TrainingLoad
from flows.model_shape import Head, lora_parameters, total_parameters
from flows.plan_figures import Figure, Known, StagePlan, count_figure, disk_figure, time_figure
from flows.plan_inputs import Count, Origin
from flows.plan_limits import batch_mistake, short_schedule_mistake
from flows.plan_seconds import policy_seconds, training_seconds


def plan_train_sft(known: Known) -> StagePlan:
    """Supervised fine-tuning."""
    config = known.config.train_sft
    if config is None:
        return StagePlan(StageName.TRAIN_SFT, "left out")
    sides = 2 if config.completions == "both" else 1
    examples, most = _times(known.data.train_pairs, sides), _times(known.data.pairs, sides)
    stage = StageName.TRAIN_SFT
    batch = plan_batch(config.global_batch_size, known.profile)
    schedule = _schedule(known, stage, config.schedule, examples, batch, most=most)
    load = _load(
        known,
        config.lora,
        head="language",
        sequences=batch.per_device_batch_size,
        max_tokens=config.max_length,
        logit_tokens=config.max_length,
        judged_tokens=config.max_length * estimates.FILLED_FRACTION * estimates.COMPLETION_FRACTION,
        gradient_checkpointing=config.gradient_checkpointing,
    )
    seconds = training_seconds(known, load, batch, schedule, sequences_per_example=1, sequences_per_pair=sides)
    return _training_plan(known, stage, batch, schedule, examples, load, config.schedule, seconds=seconds)


def plan_train_reward_model(known: Known) -> StagePlan:
    """Reward model training; a pair is two sequences."""
    config = known.config.train_reward_model
    stage, pairs = StageName.TRAIN_REWARD_MODEL, known.data.train_pairs
    batch = plan_batch(config.global_batch_size, known.profile)
    schedule = _schedule(known, stage, config.schedule, pairs, batch, most=known.data.pairs)
    load = _load(
        known,
        config.lora,
        head="score",
        sequences=2 * batch.per_device_batch_size,
        max_tokens=config.max_length,
        logit_tokens=0,
        judged_tokens=0,
        gradient_checkpointing=config.gradient_checkpointing,
    )
    seconds = training_seconds(known, load, batch, schedule, sequences_per_example=2, sequences_per_pair=2)
    return _training_plan(known, stage, batch, schedule, pairs, load, config.schedule, seconds=seconds)


def plan_train_policy(known: Known) -> StagePlan:
    """Policy training; an example is a completion."""
    config = known.config.train_policy
    stage = StageName.TRAIN_POLICY
    completions = _times(known.data.policy_train_prompts, config.num_generations)
    # A prompt has one pair or more.
    most = _times(known.data.pairs, config.num_generations)
    batch = plan_batch(config.global_batch_size, known.profile, multiple_of=config.num_generations)
    schedule = _schedule(
        known, stage, config.schedule, completions, batch, most=most, multiple_of=config.num_iterations
    )
    tokens = config.max_prompt_length + config.max_completion_length
    load = _load(
        known,
        config.lora,
        head="language",
        sequences=batch.per_device_batch_size,
        max_tokens=tokens,
        logit_tokens=config.max_completion_length,
        judged_tokens=config.max_completion_length,
        gradient_checkpointing=config.gradient_checkpointing,
    )
    seconds: float | None = None
    memory: tuple[Figure, ...] = ()
    if known.model is not None and load is not None:
        generated = batch.per_device_batch_size * batch.gradient_accumulation_steps
        memory = _policy_memory(known, load, generated=generated, tokens=tokens)
        seconds = policy_seconds(known, load, batch, schedule, generated=generated, tokens=tokens)
    return _training_plan(
        known, stage, batch, schedule, completions, load, config.schedule, seconds=seconds, more_memory=memory
    )


def _policy_memory(known: Known, load: TrainingLoad, *, generated: int, tokens: int) -> tuple[Figure, ...]:
    """What stands beside the trained policy: reward model, reference, and the cache of generation."""
    reward_model = total_parameters(load.shape, head="score")
    parts = {
        "reward model": estimates.inference_memory(reward_model, known.profile),
        "generation cache": estimates.generation_cache(load.shape, known.profile, sequences=generated, tokens=tokens),
    }
    if not load.uses_adapters:
        parts["reference policy"] = estimates.inference_memory(load.total, known.profile)
    return tuple(Figure(name, count, "bytes", "estimated") for name, count in parts.items())


def _load(
    known: Known,
    lora: LoraSettings | None,
    *,
    head: Head,
    sequences: int,
    max_tokens: int,
    logit_tokens: int,
    judged_tokens: float,
    gradient_checkpointing: bool,
) -> TrainingLoad | None:
    if known.model is None:
        return None
    shape = known.model.shape
    total = total_parameters(shape, head=head)
    # The score head is new, so it is trained in full beside its adapters.
    head_parameters = shape.hidden_size if head == "score" else 0
    trainable = total if lora is None else lora_parameters(shape, r=lora.r) + head_parameters
    return TrainingLoad(
        shape=shape,
        total=total,
        trainable=trainable,
        sequences=sequences,
        max_tokens=max_tokens,
        logit_tokens=logit_tokens,
        judged_tokens=judged_tokens,
        gradient_checkpointing=gradient_checkpointing,
        uses_adapters=lora is not None,
    )


def _schedule(
    known: Known,
    stage: StageName,
    schedule: TrainingSchedule,
    examples: Count | None,
    batch: BatchPlan,
    *,
    most: Count | None,
    multiple_of: int = 1,
) -> ResolvedSchedule | None:
    """The schedule with its numbers, None where they depend on data not seen yet; notes a mistake if it cannot work."""
    mistake = batch_mistake(known, stage, batch, most, unit=_unit(stage))
    if mistake is not None:
        known.mistakes.append(mistake)
        return None
    if examples is None and schedule.max_steps is None:
        return None
    validation = known.data.validation_pairs
    num_examples = batch.global_batch_size * (schedule.max_steps or 1) if examples is None else examples.value
    try:
        resolved = resolve_schedule(
            schedule,
            num_examples=num_examples,
            global_batch_size=batch.global_batch_size,
            num_eval_examples=None if stage is StageName.TRAIN_POLICY else (validation.value if validation else 1),
        )
    except ScheduleError as error:
        known.mistakes.append(Mistake(f"{stage.value}.schedule", f"{error} {_worth(examples)}".rstrip()))
        return None
    mistake = short_schedule_mistake(stage, schedule, steps_per_epoch=resolved.steps_per_epoch)
    if mistake is not None:
        known.mistakes.append(mistake)
    return _aligned(resolved, multiple_of) if schedule.save_steps is None and schedule.eval_steps is None else resolved


def _aligned(resolved: ResolvedSchedule, multiple_of: int) -> ResolvedSchedule:
    """Saves that nobody asked for fall on whole generated batches, as the stage itself does it."""
    raised = math.ceil(resolved.save_steps / multiple_of) * multiple_of
    return dataclasses.replace(resolved, save_steps=min(raised, resolved.num_steps))


def _times(count: Count | None, factor: int) -> Count | None:
    return None if count is None else Count(count.value * factor, count.origin)


def _unit(stage: StageName) -> str:
    return {StageName.TRAIN_REWARD_MODEL: "pairs"}.get(stage, "completions")


def _worth(examples: Count | None) -> str:
    if examples is None or examples.origin == "exact":
        return ""
    if examples.origin == "at most":
        return "Examples were counted before any filter: there are at most so many."
    return "The number of examples is estimated."


def _training_plan(
    known: Known,
    stage: StageName,
    batch: BatchPlan,
    schedule: ResolvedSchedule | None,
    examples: Count | None,
    load: TrainingLoad | None,
    asked: TrainingSchedule,
    *,
    seconds: float | None,
    more_memory: tuple[Figure, ...] = (),
) -> StagePlan:
    exact_steps = asked.max_steps is not None
    steps_origin: Origin = "exact" if exact_steps else (examples.origin if examples else "unknown")
    steps = None if schedule is None else schedule.num_steps
    figures = [count_figure("examples an epoch", examples, _unit(stage)), Figure("steps", steps, "steps", steps_origin)]
    memory: tuple[Figure, ...] = ()
    host_memory, disk = None, None
    if load is not None and known.model is not None:
        origin = known.model.origin
        figures += [
            Figure("parameters", load.total, "parameters", origin),
            Figure("trained parameters", load.trainable, "parameters", origin, f"{load.trainable / load.total:.2%}"),
        ]
        parts = estimates.training_memory(load, known.profile)
        memory = (*(Figure(name, count, "bytes", "estimated") for name, count in parts), *more_memory)
        on_device = sum(int(figure.value or 0) for figure in memory)
        count, how = estimates.host_memory(load, known.profile, on_device=on_device)
        host_memory = Figure("host memory", count, "bytes", "estimated", how)
        disk = _training_disk(known, load, asked)
    return StagePlan(
        stage,
        known.cached(stage),
        batch,
        schedule,
        tuple(figures),
        memory=memory,
        host_memory=host_memory,
        disk=disk,
        time=time_figure(seconds),
    )


def _training_disk(known: Known, load: TrainingLoad, asked: TrainingSchedule) -> Figure:
    """Checkpoints (the best one stays beside the limit), the whole model, and its adapter."""
    checkpoints = (asked.save_total_limit + 1) * estimates.checkpoint_bytes(load)
    model = estimates.inference_memory(load.total, known.profile)
    adapter = load.trainable * 4 if load.uses_adapters else 0
    note = f"{asked.save_total_limit + 1} checkpoints, whole model" + (", adapter" if adapter else "")
    return disk_figure(checkpoints + model + adapter, note=note)
