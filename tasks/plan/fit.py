"""Stages that cannot fit on the GPUs of the profile, the smallest change that makes them fit, and fallbacks as text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from containers.contracts.configs.stages import StageConfig
from containers.contracts.hardware import GIB, BatchPlan, GpuProfile
from containers.contracts.names import StageName
from containers.contracts.outcome import FailureKind
from containers.contracts.registries import capabilities, planned_runtime
from containers.contracts.schedule import ScheduleError
from containers.launch.ladder import Host, Shape, all_steps, next_step
from tasks.config.errors import Mistake
from tasks.config.run_sections import RuntimeSection
from tasks.plan.changes import TRAININGS, changes_of, undivided_models, with_settings
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
    can = capabilities(planned_runtime(runtime.kind))
    planned, host = Shape(config, profile, batch), Host(makes_shm=can.enforces_shm)
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
    for settings, changed in changes_of(context, stage):
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


def _needed(context: PlanContext, planner: Callable[[PlanContext], StagePlan]) -> float | None:
    """Bytes on one GPU; None where the batch cannot be divided over the ranks of that profile."""
    try:
        return memory_bytes(planner(replace(context, mistakes=[])))
    except ScheduleError:
        return None
