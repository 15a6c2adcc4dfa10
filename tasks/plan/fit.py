"""Stages that cannot fit on the GPUs of the profile, the smallest change that makes them fit, and fallbacks as text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from containers.contracts.configs.parts.adapters import adapter_contradictions
from containers.contracts.configs.parts.training import LoraSettings
from containers.contracts.configs.stages import StageConfig
from containers.contracts.hardware import GIB, BatchPlan, GpuProfile, undivided_heads
from containers.contracts.identity import config_profile
from containers.contracts.names import StageName
from containers.contracts.outcome import FailureKind
from containers.contracts.pipeline import STAGE_FACTS, Devices
from containers.contracts.schedule import ScheduleError
from containers.launch.ladder import Host, Shape, all_steps, next_step
from tasks.config.errors import Mistake
from tasks.config.loading import shipped_profiles
from tasks.config.run_sections import RuntimeSection
from tasks.plan.figures import PlanContext, StagePlan
from tasks.plan.limits import is_on_gpu, memory_bytes


def ladder_lines(
    config: StageConfig, profile: GpuProfile, batch: BatchPlan, *, runtime: RuntimeSection
) -> tuple[tuple[str, str], ...]:
    """A name and a line of fallbacks for each failure possible on this profile; empty for one rank on a CPU."""
    failures = {
        "if a GPU is full": (FailureKind.OUT_OF_GPU_MEMORY, profile.num_gpus > 0),
        "if /dev/shm is full": (FailureKind.SHM_EXHAUSTED, profile.num_gpus > 0),
        "if ranks time out": (FailureKind.NCCL_TIMEOUT, profile.num_processes > 1),
    }
    planned, host = Shape(config, profile, batch), Host(makes_shm=runtime.kind != "process")
    return tuple(
        (name, _line(kind, planned, host=host, runtime=runtime))
        for name, (kind, possible) in failures.items()
        if possible
    )


def _line(kind: FailureKind, planned: Shape, *, host: Host, runtime: RuntimeSection) -> str:
    settings = runtime.ladder
    if not settings.enabled:
        again = f"tried again unchanged, {runtime.retries} times" if kind.retry_can_help else "the stage fails"
        return f"{again} (runtime.ladder.enabled is false)"
    fallbacks = all_steps(kind, planned, host=host, settings=settings)
    if fallbacks:
        return "; then ".join(fallback.change for fallback in fallbacks)
    step = next_step(kind, planned, (), host=host, settings=settings)
    return f"the stage fails: {'; '.join(step.not_tried if step else ())}"


Planners = Mapping[StageName, Callable[[PlanContext], StagePlan]]

# Estimates of memory may be 15 % off: a stage is refused only beyond that.
_ERROR = 1.15
# Of a GPU's memory, for what is proposed: a pack may be longer than those looked at.
ROOM = 0.92
# Parts of a stage's memory that a refusal names.
_NAMED_PARTS = 2
DIVISIBLE = (StageName.TRAIN_SFT, StageName.TRAIN_REWARD_MODEL, StageName.TRAIN_DPO)
TRAININGS = (*DIVISIBLE, StageName.TRAIN_POLICY)
_LENGTHS = {
    StageName.TRAIN_SFT: "max_length",
    StageName.TRAIN_REWARD_MODEL: "max_length",
    StageName.TRAIN_DPO: "max_length",
    StageName.TRAIN_POLICY: "max_prompt_length",
}
_SHORTEST_TOKENS = 256
# A change of the configuration: what `--set` takes, or another option with its value; and the run with it.
_Change = tuple[tuple[str, ...], PlanContext]


def unfit_mistakes(context: PlanContext, stages: Sequence[StagePlan], *, planners: Planners) -> Iterator[Mistake]:
    """Mistakes for stages too large for a GPU in their smallest shape: one example at a time, with checkpointing.

    A stage that fits in its smallest shape is no mistake: its fallbacks lead there (`containers.launch.ladder`). So is
    a model whose heads its GPUs cannot divide.
    """
    yield from (Mistake("gpu_profile.tensor_parallel", why) for why in undivided_models(context))
    limit = context.profile.gpu_memory_gib * GIB
    for stage in stages:
        if stage.is_reused or not is_on_gpu(context, stage.stage) or memory_bytes(stage) <= limit * _ERROR:
            continue
        planner = planners[stage.stage]
        smallest = _needed(_smallest_shape(context, stage.stage), planner)
        if smallest is None or smallest <= limit * _ERROR:
            continue
        yield _mistake(context, stage.stage, planner, needed=smallest)


def _mistake(
    context: PlanContext, stage: StageName, planner: Callable[[PlanContext], StagePlan], *, needed: float
) -> Mistake:
    profile = context.profile
    shape = " even with one example at a time and gradient checkpointing" if stage in TRAININGS else ""
    problem = (
        f"{needed / GIB:.0f} GiB per GPU are estimated{shape} ({_largest_parts(context, stage, planner)}), and profile "
        f"`{profile.name}` has {profile.gpu_memory_gib:g}."
    )
    found = _first_that_fits(context, stage, planner)
    if found is None:
        return Mistake(
            "gpu_profile",
            f"{stage.value}: {problem} No setting that is tried here makes it fit. Take larger GPUs or smaller models.",
        )
    settings, fits, is_close = found
    key = settings[0].partition("=")[0]
    told = problem if key.startswith(f"{stage.value}.") else f"{stage.value}: {problem}"
    close = ", which may just fit" if is_close else ""
    return Mistake(
        key if "." in key else "gpu_profile",
        f"{told} The smallest change that fits: `{' '.join(settings)}` ({fits / GIB:.0f} GiB{close}).",
    )


def _first_that_fits(
    context: PlanContext, stage: StageName, planner: Callable[[PlanContext], StagePlan]
) -> tuple[tuple[str, ...], float, bool] | None:
    """Return the first change with room to spare, its bytes, and False; else the first without, and True."""
    close: tuple[tuple[str, ...], float, bool] | None = None
    for settings, changed in _changes(context, stage):
        is_here = changed.profile.gpu_memory_gib == context.profile.gpu_memory_gib
        if close is not None and not is_here:
            return close
        fits, limit = _needed(_smallest_shape(changed, stage), planner), changed.profile.gpu_memory_gib * GIB
        if fits is not None and fits <= ROOM * limit:
            return settings, fits, False
        if fits is not None and fits <= limit and is_here and close is None:
            close = settings, fits, True
    return close


def _largest_parts(context: PlanContext, stage: StageName, planner: Callable[[PlanContext], StagePlan]) -> str:
    """The parts of the memory that take most, as text."""
    plan = planner(replace(_smallest_shape(context, stage), mistakes=[]))
    parts = sorted(plan.memory, key=lambda part: part.value or 0, reverse=True)[:_NAMED_PARTS]
    return ", ".join(f"{part.name} {(part.value or 0) / GIB:.0f} GiB" for part in parts)


def _changes(context: PlanContext, stage: StageName) -> Iterator[_Change]:
    """Changes that could help, the smallest first.

    A model that the ranks divide gets the same weights: only the profile changes, and what lies in host memory. Then
    come frozen weights of fewer bits, shorter examples, adapters in place of all weights, both, larger GPUs.
    """
    yield from (change for change in _all_changes(context, stage) if is_allowed(change[-1]))


def _all_changes(context: PlanContext, stage: StageName) -> Iterator[_Change]:
    yield from _divided(context, stage)
    yield from _offloaded(context, stage)
    yield from _held_together(context, stage)
    yield from _quantized(context, stage)
    yield from _both(context, stage, _quantized, _divided)
    yield from _without_vllm(context, stage)
    yield from _both(context, stage, _without_vllm, _quantized)
    yield from _smaller_batches(context, stage)
    yield from _shorter(context, stage)
    yield from _adapters(context, stage)
    yield from _both(context, stage, _adapters, _quantized)
    if stage is StageName.TRAIN_POLICY and context.config.trains_reward_model:  # then on the policy's own weights
        yield from _adapters(context, StageName.TRAIN_REWARD_MODEL)
    yield from _larger_gpus(context, stage)


def _both(
    context: PlanContext,
    stage: StageName,
    first: Callable[[PlanContext, StageName], Iterator[_Change]],
    second: Callable[[PlanContext, StageName], Iterator[_Change]],
) -> Iterator[_Change]:
    for settings, changed in first(context, stage):
        yield from (((*settings, *more), both) for more, both in second(changed, stage))


def is_allowed(context: PlanContext) -> bool:
    """Whether no training contradicts how it would be divided and held; a profile is that of all of them."""
    sections = (getattr(context.config, stage.value, None) for stage in TRAININGS)
    return not any(
        any(adapter_contradictions(section, divides=_divides(context, section)))
        for section in sections
        if section is not None
    )


def _divides(context: PlanContext, section: StageConfig) -> bool:
    return config_profile(context.profile, section).distribution == "fsdp"


def _offloaded(context: PlanContext, stage: StageName) -> Iterator[_Change]:
    """Keep the shares of a divided model, and a policy's frozen models, in host memory; divide it first if need be."""
    section = getattr(context.config, stage.value, None)
    if stage not in TRAININGS or section is None or section.optimizer.offload:
        return
    divided = list(_divided(context, stage)) if not _divides(context, section) else [((), context)]
    for settings, changed in divided:
        optimizer = section.optimizer.model_copy(update={"offload": True})
        frozen = {"offload_frozen": True} if stage is StageName.TRAIN_POLICY else {}
        more = (f"{stage.value}.optimizer.offload=true", *(f"{stage.value}.{name}=true" for name in frozen))
        yield (*more, *settings), with_settings(changed, stage, {"optimizer": optimizer, **frozen})


def _divided(context: PlanContext, stage: StageName) -> Iterator[_Change]:
    """Divide the model over the profile's ranks."""
    profile = context.profile
    if stage is StageName.TRAIN_POLICY and may_divide_policy(context):
        yield ("train_policy.distribution=fsdp",), with_settings(context, stage, {"distribution": "fsdp"})
    if stage not in DIVISIBLE or profile.num_processes == 1 or profile.distribution == "fsdp":
        return
    changed = replace(context, profile=profile.model_copy(update={"distribution": "fsdp"}))
    yield ("gpu_profile.distribution=fsdp",), changed


def _held_together(context: PlanContext, stage: StageName) -> Iterator[_Change]:
    """Have a stage that evaluates hold its model on several GPUs, as far as they divide the run's own models."""
    profile = context.profile
    if STAGE_FACTS[stage].devices is not Devices.ALL_GPUS:
        return
    for count in range(profile.tensor_parallel + 1, profile.num_gpus + 1):
        changed = replace(context, profile=profile.model_copy(update={"tensor_parallel": count}))
        if not any(undivided_models(changed)):
            yield (f"gpu_profile.tensor_parallel={count}",), changed


def undivided_models(context: PlanContext) -> Iterator[str]:
    """Reasons why the GPUs of a model in an evaluation cannot divide the run's models."""
    shapes = {one.shape for one in (context.model, context.scorer, *context.scorers_of_policy) if one is not None}
    for heads, key_heads in sorted({(shape.num_attention_heads, shape.num_key_value_heads) for shape in shapes}):
        if why := undivided_heads(heads, key_heads, tensor_parallel=context.profile.tensor_parallel):
            yield why


def may_divide_policy(context: PlanContext) -> bool:
    """Whether the ranks could divide the policy, and do not."""
    policy = context.config.train_policy
    changed = policy.model_copy(update={"distribution": "fsdp"})
    if policy.distribution == "fsdp" or config_profile(context.profile, policy).num_processes == 1:
        return False
    return not any(adapter_contradictions(changed, divides=True))


def _quantized(context: PlanContext, stage: StageName) -> Iterator[_Change]:
    """Hold the frozen weights in 4 bits while adapters train."""
    section = getattr(context.config, stage.value, None)
    if stage not in TRAININGS or section is None or section.lora is None or section.quantization is not None:
        return
    if getattr(section, "rollout_engine", "") != "vllm":
        yield (f"{stage.value}.quantization=nf4",), with_settings(context, stage, {"quantization": "nf4"})


def _without_vllm(context: PlanContext, stage: StageName) -> Iterator[_Change]:
    """Let the ranks write by themselves."""
    if stage is StageName.TRAIN_POLICY and context.config.train_policy.rollout_engine == "vllm":
        given = context.config.train_policy
        usual = {"vllm_gpus": 0, "vllm_memory_fraction": None, "vllm_sleeps": True}
        update = {name: value for name, value in usual.items() if getattr(given, name) != value}
        shown = [f"train_policy.{name}={str(value).lower().replace('none', 'null')}" for name, value in update.items()]
        changed = with_settings(context, stage, {"rollout_engine": "shared_prompts", **update})
        yield ("train_policy.rollout_engine=shared_prompts", *shown), changed


def _smaller_batches(context: PlanContext, stage: StageName) -> Iterator[_Change]:
    """Let each rank write fewer completions at a time: it writes all of its part of a batch together."""
    policy, profile = context.config.train_policy, context.profile
    if stage is not StageName.TRAIN_POLICY or policy.rollout_batch_size is not None:
        return
    least = policy.num_generations * config_profile(profile, policy).num_processes
    batch = policy.global_batch_size or profile.default_global_batch_size
    while (batch := batch // 2 // least * least) >= least:
        changed = with_settings(context, stage, {"global_batch_size": batch})
        yield (f"train_policy.global_batch_size={batch}",), changed


def _shorter(context: PlanContext, stage: StageName) -> Iterator[_Change]:
    name = _LENGTHS.get(stage)
    section = getattr(context.config, stage.value, None)
    if name is None or section is None:
        return
    length = getattr(section, name) // 2
    while length >= _SHORTEST_TOKENS:
        yield (f"{stage.value}.{name}={length}",), with_settings(context, stage, {name: length})
        length //= 2


def _adapters(context: PlanContext, stage: StageName) -> Iterator[_Change]:
    section = getattr(context.config, stage.value, None)
    if stage not in TRAININGS or section is None or section.lora is not None:
        return
    lora = LoraSettings()
    is_reward_model = stage is StageName.TRAIN_REWARD_MODEL
    trainable = {"trainable": "lora"} if is_reward_model else {}
    more = (f"{stage.value}.{name}={value}" for name, value in trainable.items())
    settings = (f"{stage.value}.lora={{r: {lora.r}, alpha: {lora.alpha}}}", *more)
    yield settings, with_settings(context, stage, {"lora": lora, **trainable})


def _larger_gpus(context: PlanContext, stage: StageName) -> Iterator[_Change]:
    """The profiles of configs/gpu_profiles with larger GPUs, smallest GPUs and fewest of them first."""
    profiles = [profile for profile in shipped_profiles() if profile.gpu_memory_gib > context.profile.gpu_memory_gib]
    for profile in sorted(profiles, key=lambda profile: (profile.gpu_memory_gib, profile.num_gpus)):
        config = context.config.model_copy(update={"gpu_profile": profile})
        yield (f"--profile {profile.name}",), replace(context, config=config, profile=profile)


def _smallest_shape(context: PlanContext, stage: StageName) -> PlanContext:
    """The stage with one example per device and with checkpointing, as its fallbacks would make it."""
    if stage not in TRAININGS:
        return context
    profile = context.profile.model_copy(update={"max_per_device_batch_size": 1})
    # The fallbacks shrink a configured budget of packs with the batch, at last to the longest example alone.
    section = getattr(context.config, stage.value)
    packs = {} if getattr(section, "pack_tokens", None) is None else {"pack_tokens": 1}
    changed = with_settings(context, stage, {"gradient_checkpointing": True, **packs})
    return replace(changed, profile=profile)


def with_settings(context: PlanContext, stage: StageName, update: Mapping[str, object]) -> PlanContext:
    """The run with other settings of one stage."""
    section = getattr(context.config, stage.value)
    config = context.config.model_copy(update={stage.value: section.model_copy(update=update)})
    return replace(context, config=config)


def _needed(context: PlanContext, planner: Callable[[PlanContext], StagePlan]) -> float | None:
    """Bytes on one GPU; None where the batch cannot be divided over the ranks of that profile."""
    try:
        return memory_bytes(planner(replace(context, mistakes=[])))
    except ScheduleError:
        return None
