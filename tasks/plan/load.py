"""Maximum and usual tokens of a forward in a stage that trains, from the lengths of the pairs."""

import math
from collections.abc import Sequence

from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.hardware import BatchPlan, GpuProfile
from containers.contracts.names import StageName
from containers.contracts.schedule import ResolvedSchedule
from containers.packing_traits import PLAIN, why_pairs_are_padded
from containers.token_budgets import pair_pack_tokens
from tasks.plan import estimates
from tasks.plan.estimates import TrainingLoad, Work
from tasks.plan.figures import Figure, PlanContext
from tasks.plan.inputs.lengths import PairLengths, PairTokens
from tasks.plan.inputs.model_shape import lora_parameters, total_parameters

# Assumed, to write a file, or to read it from the system's cache.
FILE_BYTES_PER_S = 1e9

ON_PAIRS = (StageName.TRAIN_REWARD_MODEL, StageName.TRAIN_DPO)
TrainingConfig = TrainSftConfig | TrainRewardModelConfig | TrainDpoConfig | TrainPolicyConfig


def reward_model_load(context: PlanContext, config: TrainRewardModelConfig, batch: BatchPlan) -> TrainingLoad | None:
    """Load of the reward model: packs of whole pairs, each prompt once; or padded rows, two for each pair."""
    pairs = _fitting(context, config.max_length)
    usual = estimates.FILLED_FRACTION * config.max_length
    rows = 2 * batch.per_device_batch_size
    if not why_padded(context, config):
        forward, mean = pack_tokens(context, config, batch), mean_tokens([pair.packed for pair in pairs]) / 2
    else:
        forward = rows * longest_tokens(context, [pair.longest for pair in pairs], most=config.max_length)
        mean = padded_mean_tokens([pair.prompt + side for pair in pairs for side in (pair.chosen, pair.rejected)], rows)
    return training_load(context, config, forward_tokens=forward, mean_tokens=mean or usual, judged_tokens=0)


def why_padded(context: PlanContext, config: TrainRewardModelConfig) -> str:
    """A clause about why the pairs are computed as padded rows; empty if they are packed."""
    traits = context.model.traits if context.model is not None else PLAIN
    return why_pairs_are_padded(config, traits, longest=longest_conversation(context, config.max_length))


def pack_tokens(context: PlanContext, config: TrainRewardModelConfig, batch: BatchPlan) -> int:
    """Tokens of the largest possible pack: a full one, a longer pair, or all that a rank has in a step."""
    budget = config.pack_tokens or pair_pack_tokens(
        config.max_length,
        per_device_batch_size=batch.per_device_batch_size,
        on_gpu=context.profile.num_gpus > 0,
    )
    pairs = _fitting(context, config.max_length)
    longest = longest_tokens(context, [pair.packed for pair in pairs], most=2 * config.max_length)
    of_a_step = batch.per_device_batch_size * batch.gradient_accumulation_steps
    return min(max(budget, longest), of_a_step * longest)


def prompt_tokens(context: PlanContext, max_length: int) -> Sequence[int]:
    """Tokens of the prompts that fit; empty if none could be read."""
    lengths = lengths_of_prompts(context)
    return lengths.fitting_prompts(max_length) if lengths is not None else ()


def lengths_of_prompts(context: PlanContext) -> PairLengths | None:
    """The lengths of the policy's prompts; None if none could be read."""
    return context.lengths if context.config.prompts is None else context.prompt_lengths


def mean_prompt_tokens(context: PlanContext, max_length: int) -> float:
    """Tokens of a usual prompt."""
    return mean_tokens(prompt_tokens(context, max_length)) or estimates.FILLED_FRACTION * max_length


def longest_prompt(context: PlanContext, max_length: int) -> int:
    """Tokens of the longest prompt, for estimates of memory."""
    return longest_tokens(context, prompt_tokens(context, max_length), most=max_length)


def mean_conversation(context: PlanContext, max_length: int) -> float:
    """Tokens of a usual conversation of a pair."""
    pairs = _fitting(context, max_length)
    return mean_tokens([pair.prompt + (pair.chosen + pair.rejected) / 2 for pair in pairs]) or (
        estimates.FILLED_FRACTION * max_length
    )


def longest_conversation(context: PlanContext, max_length: int) -> int:
    """Tokens of the longest conversation, for estimates of memory."""
    return longest_tokens(context, [pair.longest for pair in _fitting(context, max_length)], most=max_length)


def training_load(
    context: PlanContext, config: TrainingConfig, *, forward_tokens: int, mean_tokens: float, judged_tokens: float
) -> TrainingLoad | None:
    """What a training stage computes and trains; None where the model's shape is not known."""
    if context.model is None:
        return None
    shape, lora = context.model.shape, config.lora
    is_reward_model = isinstance(config, TrainRewardModelConfig)
    head_alone = isinstance(config, TrainRewardModelConfig) and config.trainable == "head"
    total = total_parameters(shape, head="score" if is_reward_model else "language")
    # The score head is new, so it is trained in full beside its adapters.
    head_parameters = shape.hidden_size if is_reward_model else 0
    if head_alone:
        trainable = head_parameters
    else:
        trainable = total if lora is None else lora_parameters(shape, lora) + head_parameters
    return TrainingLoad(
        shape=shape,
        total=total,
        trainable=trainable,
        forward_tokens=forward_tokens,
        mean_tokens=mean_tokens,
        judged_tokens=judged_tokens,
        gradient_checkpointing=config.gradient_checkpointing,
        # A head that is trained alone is kept as an adapter without layers.
        uses_adapters=lora is not None or head_alone,
        quantization=config.quantization,
        offloads=config.optimizer.offload and context.profile.num_gpus > 0,
    )


def _fitting(context: PlanContext, max_length: int) -> Sequence[PairTokens]:
    return context.lengths.fitting(max_length) if context.lengths is not None else ()


def longest_tokens(context: PlanContext, lengths: Sequence[int], *, most: int) -> int:
    """The longest, with a margin for rows outside the sample; `most` if there is no sample."""
    return context.lengths.with_margin(max(lengths), most=most) if context.lengths is not None and lengths else most


def mean_tokens(lengths: Sequence[float]) -> float:
    """Mean; 0 if there is no sample."""
    return sum(lengths) / len(lengths) if lengths else 0.0


def padded_mean_tokens(lengths: Sequence[int], rows: int) -> float:
    """Mean tokens of a sequence with its padding, in batches of consecutive rows."""
    batches = [lengths[start : start + rows] for start in range(0, len(lengths), rows)]
    return sum(max(batch) * len(batch) for batch in batches) / len(lengths) if lengths else 0.0


def forward_figure(load: TrainingLoad | None, why_padded: str, *, packed: str) -> Figure:
    """Tokens computed at a time, and their layout."""
    how = f"padded rows: {why_padded}" if why_padded else f"packed {packed}, each prompt once"
    return Figure("computed at a time", None if load is None else load.forward_tokens, "tokens", "at most", how)


def evaluated_pairs(context: PlanContext, schedule: ResolvedSchedule, most: int | None) -> int:
    """Tune pairs that all evaluations of a training compute together, the last step's included.

    Args:
        most: pairs of an evaluation; the last weights are then measured once more, on all. None: all.
    """
    tune = context.data.tune_pairs.value if context.data.tune_pairs else 0
    evaluations = math.ceil(schedule.num_steps / schedule.eval_steps)
    return evaluations * tune if most is None or most >= tune else evaluations * most + tune


def reward_model_figures(
    context: PlanContext, config: TrainRewardModelConfig, load: TrainingLoad | None
) -> tuple[Figure, ...]:
    """Tokens computed at a time, and the pairs of an evaluation where these are not all."""
    forward = forward_figure(load, why_padded(context, config), packed="pairs")
    tune, most = context.data.tune_pairs, config.max_eval_pairs
    if tune is None or most is None or most >= tune.value:
        return (forward,)
    note = f"of {tune.value:,}; the last weights and the chosen ones are measured on all"
    return (forward, Figure("pairs of an evaluation", most, "pairs", tune.origin, note))


def copies_work(load: TrainingLoad, profile: GpuProfile) -> Work:
    """Time in which the model is saved, loaded again and compared: a trial before the first step, and at the end."""
    whole = estimates.inference_memory(load.total, profile)
    files = 3 if load.uses_adapters else 2  # written and read; with adapters the start model is read, too
    return Work(0.0, 2 * files * whole / FILE_BYTES_PER_S)


def sequences_of(stage: StageName) -> int:
    """Conversations of an example: a pair is two."""
    return 2 if stage in ON_PAIRS else 1


def token_figures(
    stage: StageName, batch: BatchPlan, schedule: ResolvedSchedule | None, load: TrainingLoad
) -> tuple[Figure, ...]:
    """Tokens that the updates compute, per step and in all."""
    a_step = batch.global_batch_size * sequences_of(stage) * load.mean_tokens
    in_all = None if schedule is None else a_step * schedule.num_steps
    return (
        Figure("tokens a step", a_step, "tokens", "estimated"),
        Figure("tokens", in_all, "tokens", "unknown" if in_all is None else "estimated"),
    )


def speed_figures(
    context: PlanContext,
    stage: StageName,
    batch: BatchPlan,
    schedule: ResolvedSchedule | None,
    load: TrainingLoad,
    work: Work | None,
) -> tuple[Figure, ...]:
    """How fast GPUs train: tokens of updates alone, on each; of a policy its completions, with all that it does."""
    profile = context.profile
    if not profile.num_gpus:
        return ()
    if stage is StageName.TRAIN_POLICY:
        number = None if schedule is None else schedule.num_steps * batch.global_batch_size
        speed = None if number is None or work is None else number / work.seconds
        return (Figure("speed, all together", speed, "completions/s", "unknown" if speed is None else "estimated"),)
    sequences = batch.global_batch_size * sequences_of(stage)
    seconds = estimates.training_work(load, profile, sequences=sequences).seconds
    speed = sequences * load.mean_tokens / seconds / profile.num_processes
    return (Figure("speed of updates", speed, "tokens/s a GPU", "estimated"),)
