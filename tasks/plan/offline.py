"""Load and work of a training on given completions: fine-tuning, and the losses on pairs."""

from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.hardware import BatchPlan
from containers.contracts.schedule import ResolvedSchedule
from containers.packing_traits import PLAIN, why_completions_are_padded
from containers.token_budgets import example_pack_tokens
from tasks.plan import estimates
from tasks.plan.estimates import TrainingLoad, Work
from tasks.plan.figures import PlanContext
from tasks.plan.head import Head
from tasks.plan.inputs.data import Count
from tasks.plan.load import longest_tokens, mean_tokens, padded_mean_tokens, training_load


def offline_load(
    context: PlanContext, config: TrainSftConfig | TrainDpoConfig, batch: BatchPlan
) -> TrainingLoad | None:
    """Load of a training on given completions: packs in which completions share their prompt, or padded rows."""
    groups = completion_groups(context, config)
    width, usual = completions_of_example(config), estimates.FILLED_FRACTION * config.max_length
    answers = [answer for _, own in groups for answer in own]
    rows = [prompt + answer for prompt, own in groups for answer in own]
    at_a_time = width * batch.per_device_batch_size
    if why_completions_padded(context, config):
        forward = at_a_time * longest_tokens(context, rows, most=config.max_length)
        mean = padded_mean_tokens(rows, at_a_time)
    else:
        packed = [prompt + sum(own) for prompt, own in groups]
        budget = config.pack_tokens or example_pack_tokens(
            width * config.max_length,
            per_device_batch_size=batch.per_device_batch_size,
            on_gpu=context.profile.num_gpus > 0,
        )
        most = max((len(own) for _, own in groups), default=width) * config.max_length
        longest = longest_tokens(context, packed, most=most)
        of_a_step = batch.per_device_batch_size * batch.gradient_accumulation_steps
        forward = min(max(budget, longest), of_a_step * longest)
        mean = sum(packed) / len(answers) if answers else 0.0
    of_answers = mean_tokens(answers) or usual * estimates.COMPLETION_FRACTION
    return training_load(context, config, forward_tokens=forward, mean_tokens=mean or usual, judged_tokens=of_answers)


def completions_of_example(config: TrainSftConfig | TrainDpoConfig) -> int:
    """Completions that stay together: both of a pair, or one."""
    return 2 if isinstance(config, TrainDpoConfig) else 1


def why_completions_padded(context: PlanContext, config: TrainSftConfig | TrainDpoConfig) -> str:
    """A clause about why completions are computed as padded rows; empty if they are packed."""
    traits = context.model.traits if context.model is not None else PLAIN
    return why_completions_are_padded(config, traits)


def completion_groups(
    context: PlanContext, config: TrainSftConfig | TrainDpoConfig
) -> list[tuple[int, tuple[int, ...]]]:
    """Tokens of each prompt and of its completions that fit; empty if none could be read. A pair fits whole or not."""
    together = isinstance(config, TrainDpoConfig)
    both = together or (isinstance(config, TrainSftConfig) and config.completions == "both")
    found = []
    for pair in context.lengths.pairs if context.lengths is not None else ():
        sides = (pair.chosen, pair.rejected) if both else (pair.chosen,)
        fitting = tuple(side for side in sides if pair.prompt + side <= config.max_length)
        if fitting and (not together or len(fitting) == len(sides)):
            found.append((pair.prompt, fitting))
    return found


def reference_work(context: PlanContext, config: TrainDpoConfig, load: TrainingLoad, head: Head, pairs: Count) -> Work:
    """Forwards under the reference, once for each pair, and for kto those of completions to other prompts."""
    held_out = context.data.tune_pairs.value if context.data.tune_pairs else 0
    each = 2 if config.loss == "kto" else 1
    return _forwards(context, load, head, sequences=2 * each * (pairs.value + held_out))


def baseline_work(
    context: PlanContext,
    config: TrainDpoConfig,
    load: TrainingLoad,
    head: Head,
    schedule: ResolvedSchedule | None,
    batch: BatchPlan,
) -> Work:
    """Forwards by which kto finds its baseline in every step: of completions to other prompts."""
    if config.loss != "kto" or schedule is None:
        return Work()
    return _forwards(context, load, head, sequences=2 * batch.global_batch_size * schedule.num_steps)


def _forwards(context: PlanContext, load: TrainingLoad, head: Head, *, sequences: int) -> Work:
    ranks = context.profile.num_processes
    work = estimates.forward_work(load.shape, context.profile, tokens=sequences * load.mean_tokens, num_processes=ranks)
    return work + head.judging_work(tokens=sequences * load.judged_tokens)


def offline_head(
    context: PlanContext, config: TrainSftConfig | TrainDpoConfig, load: TrainingLoad | None, *, in_packs: bool
) -> Head | None:
    """The language head on all tokens, as if there were no prompts."""
    if load is None:
        return None
    trained = config.lora is None
    return Head(load.shape, context.profile, tokens=load.forward_tokens, is_trained=trained, in_packs=in_packs)
