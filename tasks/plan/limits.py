"""Problems found before a run starts: data that cannot be enough, figures that cost too much.

Mistakes are certain, whatever the filters and the split will do; warnings are likely.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.hardware import GIB, BatchPlan
from containers.contracts.identity import stage_profile
from containers.contracts.names import StageName
from containers.contracts.pipeline import STAGE_FACTS, Devices
from containers.formatting import percent
from tasks.config.debug import is_debug
from tasks.config.errors import Mistake
from tasks.config.gate_rules import best_lower_end
from tasks.plan import estimates
from tasks.plan.estimates import TrainingLoad, Work
from tasks.plan.figures import Figure, PlanContext, StagePlan, duration_text, epochs_text
from tasks.plan.inputs.data import Count
from tasks.plan.inputs.model_shape import unknown_layers
from tasks.plan.load import TrainingConfig, lengths_of_prompts
from tasks.plan.offline import completion_groups

# Share of lost examples that is worth a warning, if tokens were counted, and if they were guessed.
_MANY, _MANY_GUESSED = 0.05, 0.25
_MAX_BOOTSTRAP_S = 60.0
_MANY_EPOCHS = 5


@dataclass(frozen=True)
class TooLong:
    """The examples of the sample that a stage leaves out.

    Attributes:
        key: the setting that decides it, inside its stage.
        limit: its value, tokens.
        unit: what an example is.
    """

    key: str
    limit: int
    unit: str
    num_seen: int
    num_left_out: int
    shortest: int

    @property
    def share(self) -> float:
        """Share of the sample that is left out."""
        return self.num_left_out / self.num_seen


def too_long(context: PlanContext, stage: StageName) -> TooLong | None:
    """What the stage leaves out of the sample; None if there is no sample, or no limit."""
    if stage is StageName.TRAIN_SFT:
        context = context.of_fine_tuning
    of_policy, config = stage is StageName.TRAIN_POLICY, context.config
    lengths = lengths_of_prompts(context) if of_policy else context.lengths
    if lengths is None:
        return None
    pairs = lengths.pairs
    if stage is StageName.TRAIN_SFT and config.train_sft is not None:
        limit, sides = config.train_sft.max_length, 2 if config.train_sft.completions == "both" else 1
        seen, fit = sides * len(pairs), sum(len(own) for _, own in completion_groups(context, config.train_sft))
        shortest = min(pair.prompt + (min(pair.chosen, pair.rejected) if sides == 2 else pair.chosen) for pair in pairs)
        return TooLong("max_length", limit, "completions", seen, seen - fit, shortest)
    by_pairs = {StageName.TRAIN_REWARD_MODEL: config.train_reward_model, StageName.TRAIN_DPO: config.train_dpo}
    on_pairs = by_pairs.get(stage)
    if on_pairs is not None:
        limit = on_pairs.max_length
        fit, shortest = len(lengths.fitting(limit)), min(pair.longest for pair in pairs)
        return TooLong("max_length", limit, "pairs", len(pairs), len(pairs) - fit, shortest)
    if stage is StageName.TRAIN_POLICY:
        limit = config.train_policy.max_prompt_length
        fit, shortest = len(lengths.fitting_prompts(limit)), min(pair.prompt for pair in pairs)
        return TooLong("max_prompt_length", limit, "prompts", len(pairs), len(pairs) - fit, shortest)
    return None


def layer_mistakes(config: TrainingConfig, load: TrainingLoad) -> Iterator[Mistake]:
    """Layers that are named or counted in the configuration, and that the model does not have."""
    unknown = [] if config.lora is None else unknown_layers(load.shape, config.lora)
    if unknown:
        yield Mistake(
            f"{config.stage}.lora",
            f"{load.shape.model_type} has no linear layer {', '.join(unknown)}. Its layers are "
            f"{', '.join(load.shape.linear_sizes)}.",
        )
    nth, number = config.gradient_checkpointing, load.shape.num_hidden_layers
    if nth is not True and nth > number:
        told = f"every {nth}-th of {number} layers is none, so all are computed again. Use true, or at most {number}."
        yield Mistake(f"{config.stage}.gradient_checkpointing", told)


def kept(context: PlanContext, examples: Count | None, stage: StageName) -> Count | None:
    """The examples without those that are too long, if their tokens were counted and not guessed."""
    found = too_long(context, stage)
    if examples is None or found is None or context.lengths is None or not context.lengths.are_counted:
        return examples
    if not found.num_left_out or found.share == 1:
        return examples
    return Count(Count(examples.value, "estimated").share(1 - found.share).value, "estimated")


def too_long_figures(context: PlanContext, stage: StageName) -> Iterator[Figure]:
    """How many examples of the sample are too long, for a stage that has a limit."""
    found = too_long(context, stage)
    if found is not None:
        note = f"{found.share:.1%} of them, left out of the training" if found.num_left_out else ""
        unit = f"of the {found.num_seen:,} {found.unit} looked at"
        yield Figure(f"over {found.key} {found.limit:,}", found.num_left_out, unit, "estimated", note)


def too_long_troubles(context: PlanContext, stage: StageName) -> Iterator[str]:
    """A warning if a stage leaves out many examples, or all."""
    found = too_long(context, stage)
    counted = context.lengths is not None and context.lengths.are_counted
    if found is None or found.share < (_MANY if counted else _MANY_GUESSED):
        return
    key = f"{stage.value}.{found.key}"
    if found.share == 1:
        yield (
            f"{key}: not one of the {found.num_seen:,} {found.unit} looked at fits into {found.limit:,} tokens; the "
            f"shortest has about {found.shortest:,}. Raise it."
        )
    else:
        yield (
            f"{key}: {found.share:.1%} of the {found.num_seen:,} {found.unit} looked at are longer than "
            f"{found.limit:,} tokens and would be left out. Raise it where that is too many."
        )


def floor_mistakes(context: PlanContext) -> Iterator[Mistake]:
    """Minimums of filter_dataset that the counted rows cannot reach, even if no filter drops one."""
    filters, source, data = context.config.pair_filters, context.config.dataset, context.data
    if source is None:
        return
    floors = {"minimum_train_pairs": filters.minimum_train_pairs}
    held_out = {"minimum_validation_pairs": filters.minimum_validation_pairs}
    if source.holds_out_by_prompt:
        floors |= held_out
    elif _fewer(data.validation_pairs, filters.minimum_validation_pairs):
        held_by = source.validation or source.validation_split or "the mixture's validation"
        yield _floor(held_out, held_by, data.validation_pairs)
    if filters.policy_prompt_fraction:
        # A prompt has one pair or more.
        if filters.eval_prompt_fraction < 1:
            floors["twice minimum_policy_prompts"] = 2 * filters.minimum_policy_prompts
        else:
            floors["minimum_policy_prompts"] = filters.minimum_policy_prompts
    if _fewer(data.pairs, sum(floors.values())):
        yield _floor(floors, source.train or source.split or "the mixture", data.pairs)


def _floor(floors: Mapping[str, int], source: str, found: Count | None) -> Mistake:
    wanted = ", ".join(f"{name} ({count:,})" for name, count in floors.items())
    number = found.value if found is not None else 0
    return Mistake(
        "filter_dataset",
        f"{source} gives at most {number:,} pairs, one for each line, and {sum(floors.values()):,} are required: "
        f"{wanted}. Bring more data, or lower these minimums.",
    )


def sample_mistakes(context: PlanContext) -> Iterator[Mistake]:
    """A `max_rows` that exceeds the rows; not in a debug run, which sets it itself."""
    wanted, rows = context.config.filter_dataset.max_rows, context.data.rows
    if wanted is None or rows is None or wanted <= rows.value or is_debug(context.config):
        return
    found = (
        f"the {rows.value:,} rows that {'the set has in English' if rows.origin == 'estimated' else 'the data have'}"
    )
    yield Mistake(
        "filter_dataset.max_rows",
        f"{wanted:,} is more than {found} before any filter, so it would sample nothing. Use at most {rows.value:,}, "
        f"or null for all.",
    )


def batch_mistake(
    context: PlanContext, stage: StageName, batch: BatchPlan, most: Count | None, *, unit: str
) -> Mistake | None:
    """A global batch that would never be full.

    Args:
        most: examples in the data if no filter drops one; None: unknown.
    """
    size = batch.global_batch_size
    if most is None or most.value >= size:
        return None
    default = context.profile.default_global_batch_size == size
    origin = f" (the default of gpu_profile `{context.profile.name}`)" if default else ""
    return Mistake(
        f"{stage.value}.global_batch_size",
        f"{size}{origin} is more than the {most.value:,} {unit} that the data can give before any filter: no batch "
        f"would ever be full. Lower it, or bring more data.",
    )


def short_schedule_mistake(stage: StageName, schedule: TrainingSchedule, *, steps_per_epoch: int) -> Mistake | None:
    """A number of epochs that is less than one step."""
    steps = schedule.num_epochs * steps_per_epoch
    if schedule.max_steps is not None or steps >= 1:
        return None
    return Mistake(
        f"{stage.value}.schedule.num_epochs",
        f"{schedule.num_epochs:g} of an epoch of {steps_per_epoch} steps is {steps:.2g} steps: not one whole "
        f"batch. Raise it, or set max_steps.",
    )


def likely_troubles(context: PlanContext, stages: Sequence[StagePlan]) -> Iterator[str]:
    """Warnings about what will probably go wrong or take long."""
    for stage in stages:
        examples = next((figure for figure in stage.figures if figure.name == "examples an epoch"), None)
        size = stage.batch.global_batch_size if stage.batch is not None else 0
        if examples is not None and examples.value is not None and examples.value < size:
            yield (
                f"{stage.stage.value}.global_batch_size: {size} is more than the {examples.value:,.0f} {examples.unit} "
                f"to be expected, so a batch may never be full."
            )
        if is_on_gpu(context, stage.stage) and memory_bytes(stage) > context.profile.gpu_memory_gib * GIB:
            yield (
                f"{stage.stage.value}: {memory_bytes(stage) / GIB:.1f} GiB per GPU are estimated, and profile "
                f"`{context.profile.name}` has {context.profile.gpu_memory_gib:g}. {_where_too_large(stage)}"
            )
        yield from too_long_troubles(context, stage.stage)
        yield from _many_epochs(context, stage)
        yield from _overrun(context, stage)
    yield from _few_prompts(context)
    yield from _long_bootstraps(context)
    yield from _minimum_out_of_reach(context)


def _where_too_large(stage: StagePlan) -> str:
    """What comes of a stage that is a little too large."""
    if STAGE_FACTS[stage.stage].devices is Devices.ALL_RANKS:
        return (
            "It may start again in a smaller shape, which takes longer; `rlhf plan --choose` lists settings that fit."
        )
    return "It has no smaller shape: lower its batch_size (of evaluate_policy, for what it writes)."


def _many_epochs(context: PlanContext, stage: StagePlan) -> Iterator[str]:
    """A warning if the steps of a training repeat its examples many times."""
    epochs = next((figure for figure in stage.figures if figure.name == "epochs"), None)
    if epochs is None or epochs.value is None or epochs.value <= _MANY_EPOCHS or stage.is_reused:
        return
    if not is_debug(context.config):
        worth = {"at least": "at least ", "estimated": "about "}.get(epochs.origin, "")
        yield (
            f"{stage.stage.value}.schedule.max_steps: {epochs.note} are {worth}{epochs_text(epochs.value)} epochs. "
            f"After more than {_MANY_EPOCHS} a model may have memorized its examples. Lower it, or bring more data."
        )


def _overrun(context: PlanContext, stage: StagePlan) -> Iterator[str]:
    """A warning if a stage would be stopped before it ends."""
    limit = context.config.timeouts_s[stage.stage]
    seconds = stage.time.value if stage.time is not None and not stage.is_reused else None
    if limit is not None and seconds is not None and seconds > limit:
        yield (
            f"runtime.timeout_s: {stage.stage.value} is estimated to take {duration_text(seconds)} on profile "
            f"`{context.profile.name}`, and is stopped after {duration_text(limit)}. Take faster hardware or a smaller "
            f"model, or raise the limit."
        )


def _few_prompts(context: PlanContext) -> Iterator[str]:
    """A warning if the data cannot give the `max_prompts` that the user set."""
    config, prompts = context.config.evaluate_policy, context.data.policy_eval_prompts
    if "max_prompts" in config.model_fields_set and config.max_prompts and _fewer(prompts, config.max_prompts):
        found = prompts.value if prompts is not None else 0
        if not is_debug(context.config):
            yield (
                f"evaluate_policy.max_prompts: {config.max_prompts:,} is more than the {found:,} prompts that are held "
                f"out at most; all of them are used."
            )


def is_on_gpu(context: PlanContext, stage: StageName) -> bool:
    """Whether the stage uses the memory of a GPU of the profile."""
    return stage_profile(context.profile, stage).num_gpus > 0


def memory_bytes(stage: StagePlan) -> float:
    """Estimated bytes on one device."""
    return sum(figure.value or 0 for figure in stage.memory)


def _minimum_out_of_reach(context: PlanContext) -> Iterator[str]:
    """A minimum that the test pairs cannot show, however good the model: known before anything is trained."""
    gate, pairs = context.config.gates.reward_model, context.data.test_pairs
    if gate.held_by == "figure" or gate.waive is not None or is_debug(context.config):
        return
    if pairs is None or pairs.origin not in ("exact", "at most") or not pairs.value:
        return
    best = best_lower_end(pairs.value)
    if best < gate.minimum_accuracy:
        yield (
            f"gates.reward_model.minimum_accuracy: {gate.minimum_accuracy:g} cannot be shown: with {pairs.value:,} "
            f"test pairs the interval of a model without an error begins at {percent(best)}. Hold out more "
            "(filter_dataset.validation_fraction, validation_parts), lower it, or set gates.reward_model.held_by to "
            "`figure`."
        )


def _long_bootstraps(context: PlanContext) -> Iterator[str]:
    seconds = bootstrap(context).seconds * context.cpu.slowness
    if seconds > _MAX_BOOTSTRAP_S:
        yield (
            f"evaluate_reward_model.num_bootstrap: its intervals take about {math.ceil(seconds / 60):,} minutes of one "
            "core; 10,000 resamples place their ends to 3 % of a standard error."
        )


def bootstrap(context: PlanContext) -> Work:
    """Time for the resamples behind the length figures of the test pairs, or of the fewest validation pairs."""
    pairs, config = context.data.test_pairs, context.config.evaluate_reward_model
    count = context.config.filter_dataset.minimum_validation_pairs if pairs is None else pairs.value
    return estimates.bootstrap_work(values=count, num_bootstrap=config.num_bootstrap, num_means=2)


def _fewer(count: Count | None, wanted: int) -> bool:
    """Whether the count is certainly smaller; a published figure of another copy proves nothing."""
    return count is not None and count.origin in ("exact", "at most") and count.value < wanted
