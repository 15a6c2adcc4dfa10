"""Settings of each training that fit its GPUs: those that change the weights least first, then the fastest."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from containers.contracts.configs.parts.training import Checkpointing
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.hardware import GIB
from containers.contracts.identity import stage_profile
from containers.contracts.names import StageName
from containers.contracts.schedule import ScheduleError
from tasks.config.errors import Mistake
from tasks.plan.changes import (
    DIVISIBLE,
    TRAININGS,
    is_allowed,
    may_divide_policy,
    shown,
    smaller_batches,
    with_settings,
    without_vllm,
)
from tasks.plan.figures import Figure, PlanContext, StagePlan
from tasks.plan.fit import ROOM
from tasks.plan.limits import memory_bytes

# Assumed: divided layers are gathered twice in every step.
_DIVIDED_FACTOR = 1.1
# Other packs must save so much time to be proposed for it: what launches take is a coarse estimate.
_WORTH = 1.02
HOW_RANKED = (
    f"For the order, not in the times: dividing counts {_DIVIDED_FACTOR - 1:.0%} slower, other packs {_WORTH - 1:.0%}."
)
_PACK_SIZES = (0.25, 0.5, 2, 4)
# Whether layers compute again: none, all but every n-th, all.
_CHECKPOINTING: tuple[Checkpointing, ...] = (False, 2, 3, 4, 6, 9, 12, True)
_SHORTEST_PACK = 2048
_VLLM_SHARES = (0.45, 0.6, 0.75)
# GPUs for vLLM alone; what the ranks that are left cannot divide is left out.
_VLLM_GPUS = (1, 2, 4)
_SIZES = (".pack_tokens=", ".vllm_memory_fraction=")
_SOME_AGAIN = re.compile(r"(?<=\.gradient_checkpointing=)\d+")
_SHOWN = 3


@dataclass(frozen=True)
class Choice:
    """Settings of one training that fit.

    Attributes:
        changes: as `--set` takes them; none: as configured.
        memory_bytes: estimated, of one GPU.
        seconds: estimated, of the stage; None: unknown.
        saved_seconds: by which that is less than with the settings of the run; None: unknown.
        has_fewer_bits: whether the frozen weights are quantized.
        speed: estimated; None: unknown.
    """

    stage: StageName
    changes: tuple[str, ...]
    memory_bytes: float
    seconds: float | None
    saved_seconds: float | None
    has_fewer_bits: bool
    speed: Figure | None


def fitting_settings(
    context: PlanContext,
    stages: Sequence[StagePlan],
    *,
    planners: Mapping[StageName, Callable[[PlanContext], StagePlan]],
) -> tuple[Choice, ...]:
    """Return up to three settings for each training that is still to be done, and its own; nothing without GPUs."""
    if not context.profile.num_gpus:
        return ()
    found: list[Choice] = []
    for stage in stages:
        if stage.stage in TRAININGS and not stage.is_reused and stage.memory:
            found += _of_stage(context, stage, planners[stage.stage])
    return tuple(found)


def _of_stage(context: PlanContext, planned: StagePlan, planner: Callable[[PlanContext], StagePlan]) -> list[Choice]:
    most = ROOM * context.profile.gpu_memory_gib * GIB
    before: list[Mistake] = []
    planner(replace(context, mistakes=before))
    known = {str(mistake) for mistake in before}
    fitting = _fitting(context, planned, planner, known, most=most)
    if not fitting:
        for settings, smaller in smaller_batches(context, planned.stage):
            if fitting := _fitting(smaller, planned, planner, known, most=most, settings=settings):
                break
    own = _tried(context, planned, (), planner, known)
    best: dict[tuple[str, ...], Choice] = {}
    for choice in sorted(fitting, key=_rank):
        best.setdefault(_kind(choice), choice)
    found = list(best.values())
    proposed = found[:_SHOWN]
    # As configured, to compare with, also where it leaves less room than is proposed.
    if own is not None and own.memory_bytes <= context.profile.gpu_memory_gib * GIB and own not in proposed:
        proposed.append(own)
    return proposed


def _fitting(
    context: PlanContext,
    planned: StagePlan,
    planner: Callable[[PlanContext], StagePlan],
    known: set[str],
    *,
    most: float,
    settings: tuple[str, ...] = (),
) -> list[Choice]:
    """Return the variants of the run that take so many bytes at most; `settings` made the run what it is."""
    variants = _variants(context, planned)
    tried = (_tried(changed, planned, (*settings, *changes), planner, known) for changes, changed in variants)
    return [choice for choice in tried if choice is not None and choice.memory_bytes <= most]


def _kind(choice: Choice) -> tuple[str, ...]:
    """Return what its settings have in common with others that differ in sizes alone; the best of them is proposed."""
    kinds = (_SOME_AGAIN.sub("some", change) for change in choice.changes)
    return tuple(kind for kind in kinds if not any(size in kind for size in _SIZES))


def _rank(choice: Choice) -> tuple[bool, float, int, float]:
    divided = any(change.endswith("distribution=fsdp") for change in choice.changes)
    packs = any(".pack_tokens=" in change for change in choice.changes)
    seconds = (choice.seconds or 0.0) * (_DIVIDED_FACTOR if divided else 1.0) * (_WORTH if packs else 1.0)
    return choice.has_fewer_bits, round(seconds), len(choice.changes), -choice.memory_bytes


def _tried(
    context: PlanContext,
    planned: StagePlan,
    changes: tuple[str, ...],
    planner: Callable[[PlanContext], StagePlan],
    known: set[str],
) -> Choice | None:
    """Return the settings with what they cost; None if they cannot work, or have mistakes beside the known ones."""
    own: list[Mistake] = []
    try:
        plan = planner(replace(context, mistakes=own))
    except ScheduleError:
        return None
    if not {str(mistake) for mistake in own} <= known:
        return None
    section = getattr(context.config, planned.stage.value)
    before, seconds = (None if one.time is None else one.time.value for one in (planned, plan))
    saved = None if before is None or seconds is None else before - seconds
    fewer_bits, speed = section.quantization is not None, next((f for f in plan.figures if "speed" in f.name), None)
    return Choice(planned.stage, changes, memory_bytes(plan), seconds, saved, fewer_bits, speed)


def _variants(context: PlanContext, planned: StagePlan) -> Iterator[tuple[tuple[str, ...], PlanContext]]:
    """Yield the changes of each combination of settings, and the run with them."""
    stage = planned.stage
    section = getattr(context.config, stage.value)
    whole = next((figure.value for figure in planned.figures if figure.name == "computed at a time"), None)
    packs = [None, *(int(whole * size) for size in _PACK_SIZES)] if whole and section.pack else [None]
    divides = stage_profile(context.profile, stage).distribution == "fsdp"
    quantizations = [section.quantization]
    if section.lora is not None and section.quantization is None:
        quantizations.append("nf4")
    distributions = ["as it is"]
    divides_policy = stage is StageName.TRAIN_POLICY and may_divide_policy(context)
    if divides_policy or (stage in DIVISIBLE and context.profile.num_processes > 1 and not divides):
        distributions.append("fsdp")
    for quantization, checkpointing, pack, distribution, engine in product(
        quantizations, _CHECKPOINTING, packs, distributions, _engines(context, stage)
    ):
        if pack is not None and pack < _SHORTEST_PACK:
            continue
        update: dict[str, object] = dict(engine)
        if quantization is not None and update.get("rollout_engine", getattr(section, "rollout_engine", "")) == "vllm":
            continue
        if quantization != section.quantization:
            update["quantization"] = quantization
        if checkpointing != section.gradient_checkpointing:
            update["gradient_checkpointing"] = checkpointing
        if pack is not None:
            update["pack_tokens"] = pack
        if distribution == "fsdp" and divides_policy:
            update["distribution"] = "fsdp"
        changed = with_settings(context, stage, update)
        changes = [f"{stage.value}.{name}={shown(value)}" for name, value in update.items()]
        if distribution == "fsdp" and not divides_policy:
            profile = changed.profile.model_copy(update={"distribution": "fsdp"})
            changed = replace(changed, profile=profile)
            changes.append("gpu_profile.distribution=fsdp")
        if is_allowed(changed):
            yield tuple(changes), changed


def _engines(context: PlanContext, stage: StageName) -> Iterator[dict[str, object]]:
    """Yield changes of what writes a completion: as it is, without vLLM, vLLM beside each rank, other shares for it."""
    yield {}
    section = getattr(context.config, stage.value)
    if not isinstance(section, TrainPolicyConfig):
        return
    if section.rollout_engine == "vllm":
        yield without_vllm(section)
    if section.vllm_gpus or not context.profile.num_gpus:
        return
    engine: dict[str, object] = {} if section.rollout_engine == "vllm" else {"rollout_engine": "vllm"}
    if engine:
        yield engine
    yield from ({**engine, "vllm_memory_fraction": share} for share in _VLLM_SHARES)
    for count in (count for count in _VLLM_GPUS if count < context.profile.num_gpus):
        usual = {} if section.vllm_memory_fraction is None else {"vllm_memory_fraction": None}
        yield {**engine, "vllm_gpus": count, **usual}
