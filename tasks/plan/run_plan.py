"""Plan a run before anything is spent: stages, steps, memory, disk and time. Needs no GPU, torch or network."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from containers.contracts.hardware import GpuProfile
from containers.contracts.names import StageName
from containers.formatting import size
from tasks.config.errors import ConfigError, InvalidConfigError, Mistake
from tasks.config.loading import LoadedConfig
from tasks.config.run import RunConfig
from tasks.config.sources import model_source
from tasks.plan import estimates
from tasks.plan.choices import Choice, fitting_settings
from tasks.plan.estimates import Work
from tasks.plan.figures import CachedWords, Figure, PlanContext, StagePlan, disk_figure, time_figure
from tasks.plan.fit import unfit_mistakes
from tasks.plan.inputs.cpu_speed import NOT_MEASURED, CpuSpeed, HostMemory, read_host_memory, short_memory
from tasks.plan.inputs.data import data_size
from tasks.plan.inputs.gpu_speed import gpu_speed, with_card_here, with_measured_speed
from tasks.plan.inputs.lengths import read_demonstration_lengths, read_lengths, read_prompt_lengths
from tasks.plan.inputs.model_shape import total_parameters
from tasks.plan.inputs.models import FoundShape, find_model_shape, find_scorer_shape, known_starts
from tasks.plan.limits import floor_mistakes, likely_troubles, sample_mistakes
from tasks.plan.reference import plan_compute_reference
from tasks.plan.scoring import (
    plan_evaluate_policy,
    plan_evaluate_reward_model,
    plan_filter_dataset,
    plan_filter_demonstrations,
    plan_filter_prompts,
    plan_sample_completions,
    reference_troubles,
)
from tasks.plan.sets import plan_answer_sets, plan_evaluate_sets
from tasks.plan.training import plan_train_dpo, plan_train_policy, plan_train_reward_model, plan_train_sft
from tasks.sources.resolve import absent_data
from tasks.store.selftests import kept_selftests

_NO_ARTIFACTS: Mapping[StageName, Path] = {}


@dataclass(frozen=True)
class RunPlan:
    """The whole run.

    Attributes:
        config_path: the file that describes it; None if there is none.
        lengths: of the pairs, as text, and the source of these figures; empty if no pair could be read.
        store_dir: folder of artifacts and checkpoints.
        store_free_bytes: free on that disk; None: unknown.
        memory: of this machine, and a stage's limit.
        cpu: speed of this machine's CPU, if it was measured.
        mistakes: why it cannot work, whatever the data hold.
        warnings: what will probably go wrong or take long, a sentence each.
        absent: a sentence about missing data; in a run the system check reports them.
        choices: settings of the trainings that fit the GPUs, if they were wanted.
    """

    name: str
    config_path: Path | None
    profile: GpuProfile
    model: str
    dataset: str
    stages: tuple[StagePlan, ...]
    assumptions: tuple[str, ...]
    lengths: tuple[str, ...]
    store_dir: Path
    store_free_bytes: int | None
    memory: HostMemory
    cpu: CpuSpeed
    mistakes: tuple[Mistake, ...]
    warnings: tuple[str, ...]
    absent: str
    choices: tuple[Choice, ...] = ()

    @property
    def disk_bytes(self) -> float:
        """Estimated bytes that the run will write, as far as they are known; reused artifacts exist already."""
        return sum(stage.disk.value or 0 for stage in self._to_be_made if stage.disk)

    @property
    def host_memory_bytes(self) -> float:
        """Estimated memory outside GPUs that the largest stage takes, as far as it is known."""
        return max((stage.host_memory.value or 0 for stage in self._to_be_made if stage.host_memory), default=0)

    @property
    def seconds(self) -> float:
        """Estimated duration, as far as it is known."""
        return sum(stage.time.value or 0 for stage in self._to_be_made if stage.time)

    @property
    def operations(self) -> float:
        """Estimated floating-point operations, as far as they are known."""
        return sum(stage.work.value or 0 for stage in self._to_be_made if stage.work)

    @property
    def _to_be_made(self) -> tuple[StagePlan, ...]:
        return tuple(stage for stage in self.stages if not stage.is_reused)


class UnfitRunError(InvalidConfigError):
    """A run that cannot work, with its plan."""

    def __init__(self, source: str, plan: RunPlan) -> None:
        super().__init__(source, plan.mistakes)
        self.plan = plan


def plan_run(
    loaded: LoadedConfig,
    *,
    cached: CachedWords = lambda stage: "unknown until inputs exist",
    artifacts: Mapping[StageName, Path] = _NO_ARTIFACTS,
    model_config: Path | None = None,
    cpu: CpuSpeed = NOT_MEASURED,
    chooses: bool = False,
) -> RunPlan:
    """Plan a run that can work.

    Args:
        cached: says for a stage whether its result exists already.
        artifacts: folders of the stages whose result exists.
        model_config: a config.json to take the model's shape from.
        cpu: speed of this CPU, for a run without GPUs; `chooses`: also find settings that fit the GPUs.

    Raises:
        UnfitRunError: the run cannot work, since a schedule would never take a step, for example.
        ConfigError: `model_config` cannot be read.
    """
    plan = draft_plan(
        loaded.config,
        cached=cached,
        artifacts=artifacts,
        model_config=model_config,
        cpu=cpu,
        config_path=loaded.path,
        chooses=chooses,
    )
    if plan.mistakes:
        raise UnfitRunError(str(loaded.path), plan)
    return plan


def draft_plan(
    config: RunConfig,
    *,
    cached: CachedWords = lambda stage: "unknown until inputs exist",
    artifacts: Mapping[StageName, Path] = _NO_ARTIFACTS,
    model_config: Path | None = None,
    cpu: CpuSpeed = NOT_MEASURED,
    config_path: Path | None = None,
    chooses: bool = False,
) -> RunPlan:
    """Like `plan_run`, but with the mistakes in the plan, and also for a configuration without a file."""
    model: FoundShape | None = None
    mistakes: list[Mistake] = []
    try:
        model = find_model_shape(config, model_config=model_config)
    except ConfigError as error:
        if model_config is not None:
            raise
        mistakes.append(Mistake("", str(error)))
    data = data_size(
        config,
        filtered=artifacts.get(StageName.FILTER_DATASET),
        prompts=artifacts.get(StageName.FILTER_PROMPTS),
        demonstrations=artifacts.get(StageName.FILTER_DEMONSTRATIONS),
    )
    reference = config.filter_dataset.polarity.reference_reward_model
    vocabulary_size = model.shape.vocab_size if model else None
    lengths = read_lengths(config, data, vocabulary_size=vocabulary_size, artifacts=artifacts)
    profile = with_measured_speed(with_card_here(config.gpu_profile), kept_selftests(config.store_dir))
    context = PlanContext(
        config,
        profile,
        data,
        model,
        cached,
        lengths=lengths,
        prompt_lengths=read_prompt_lengths(config, vocabulary_size=vocabulary_size, artifacts=artifacts),
        demonstration_lengths=read_demonstration_lengths(config, vocabulary_size=vocabulary_size, artifacts=artifacts),
        reward_model=None if config.reward_model is None else find_scorer_shape(config.reward_model),
        further_reward_models=tuple(
            find_scorer_shape(model_source(other), starts=known_starts(config, artifacts))
            for other in config.further_reward_models
        ),
        judges={
            judge.name: found
            for judge in config.judging_models
            if (found := find_scorer_shape(model_source(judge))) is not None
        },
        reference=None if reference is None else find_scorer_shape(model_source(reference)),
        reused=frozenset(artifacts),
        cpu=cpu,
        mistakes=mistakes,
    )
    context.mistakes.extend(floor_mistakes(context))
    context.mistakes.extend(sample_mistakes(context))
    stages = tuple(_planned(context, stage) for stage in config.stages)
    context.mistakes.extend(unfit_mistakes(context, stages, planners=_PLANNERS))
    plan = RunPlan(
        name=config.run.name,
        config_path=config_path,
        profile=profile,
        model=model.words if model else "unknown shape: pass --model-config with the model's config.json",
        dataset=data.words,
        stages=stages,
        assumptions=tuple(_assumptions(context)),
        lengths=() if lengths is None else (lengths.spread, lengths.words),
        store_dir=config.store_dir,
        store_free_bytes=_free_bytes(config.store_dir),
        memory=read_host_memory(config.gpu_profile, kind=config.runtime.kind),
        cpu=cpu,
        mistakes=tuple(context.mistakes),
        warnings=(*likely_troubles(context, stages), *reference_troubles(context)),
        absent=_absent_data(context),
        choices=fitting_settings(context, stages, planners=_PLANNERS) if chooses else (),
    )
    full_memory = short_memory(plan.memory, needed_bytes=plan.host_memory_bytes)
    return replace(plan, warnings=(*plan.warnings, *_full_disk(plan), *full_memory))


def _assumptions(context: PlanContext) -> Iterator[str]:
    if context.profile.num_gpus:
        yield f"speed: {gpu_speed(context.profile).words}"
    else:
        yield f"time: {context.cpu.words}"
    unread = _unread(context)
    if unread:
        yield (
            f"tokens: no {unread} could be read, so conversations fill {estimates.FILLED_FRACTION:.0%} of max_length; "
            f"memory is estimated at the full length"
        )
    else:
        yield (
            "tokens: the mean of those looked at that fit; memory is estimated at the longest and a tenth more, "
            "or half more where not every pair was counted by the tokenizer, and never above the full length"
        )
    yield (
        "work (FLOP): 2 a weight and token forward, 2 or 4 backward, and 2 more with checkpointing; attention over "
        "earlier tokens is left out"
    )
    yield "trained weights, gradients and AdamW's moments in float32, frozen weights in the profile's precision"
    alone = "; evaluations are spread over all GPUs" if context.profile.num_gpus > 1 else ""
    yield f"completions are generated to their full length{alone}"
    yield (
        "disk: the checkpoints that are kept, the best one and one that is being written among them, and final "
        "artifacts; nothing is compressed"
    )


def _unread(context: PlanContext) -> str:
    """The kind of rows whose lengths are unknown; empty if all are known."""
    config = context.config
    kinds = (
        ("pair", config.dataset, context.lengths),
        ("prompt", config.prompts, context.prompt_lengths),
        ("demonstration", config.demonstrations, context.demonstration_lengths),
    )
    return next((name for name, source, lengths in kinds if source is not None and lengths is None), "")


def _absent_data(context: PlanContext) -> str:
    """Message about the first local data that are missing; empty if none are."""
    problem = next((found for source in context.config.sources for found in absent_data(source)), None)
    if problem is None:
        return ""
    lacks = "nothing of the data" if context.data.rows is None else "nothing of it"
    return f"{problem.removesuffix('.')} here, so {lacks} is in this plan. `rlhf check` and `rlhf run` refuse it."


def _full_disk(plan: RunPlan) -> Iterator[str]:
    """A warning if the run writes more than the disk has free; the run's system check then refuses."""
    if plan.store_free_bytes is not None and plan.disk_bytes > plan.store_free_bytes:
        yield (
            f"run.store_dir: about {size(plan.disk_bytes)} will be written, and {plan.store_dir.absolute()} has "
            f"{size(plan.store_free_bytes)} left. Free some, name a folder on another disk, or lower "
            f"schedule.save_total_limit."
        )


def _free_bytes(folder: Path) -> int | None:
    """Free bytes of the disk that has, or will have, the folder."""
    place = folder.absolute()
    there = next((parent for parent in (place, *place.parents) if parent.is_dir()), None)
    try:
        return None if there is None else shutil.disk_usage(there).free
    except OSError:
        return None


def _build_base_model(context: PlanContext) -> StagePlan:
    stage = StageName.BUILD_BASE_MODEL
    if context.model is None:
        return StagePlan(stage, context.cached(stage))
    total = total_parameters(context.model.shape, head="language")
    return replace(
        context.plan_of(stage),
        figures=(Figure("parameters", total, "parameters", context.model.origin),),
        disk=disk_figure(total * 4, note="whole model in float32"),
        time=time_figure(context, stage, Work()),
    )


def _planned(context: PlanContext, stage: StageName) -> StagePlan:
    """The stage's plan; for a stage without a planner, only the start of its program."""
    planner = _PLANNERS.get(stage)
    return planner(context) if planner else replace(context.plan_of(stage), time=time_figure(context, stage, Work()))


_PLANNERS: dict[StageName, Callable[[PlanContext], StagePlan]] = {
    StageName.CHECK_SYSTEM: lambda context: StagePlan(StageName.CHECK_SYSTEM, "always runs"),
    StageName.FILTER_DATASET: plan_filter_dataset,
    StageName.FILTER_PROMPTS: plan_filter_prompts,
    StageName.FILTER_DEMONSTRATIONS: plan_filter_demonstrations,
    StageName.BUILD_BASE_MODEL: _build_base_model,
    StageName.TRAIN_SFT: plan_train_sft,
    StageName.TRAIN_REWARD_MODEL: plan_train_reward_model,
    StageName.EVALUATE_REWARD_MODEL: plan_evaluate_reward_model,
    StageName.COMPUTE_REFERENCE: plan_compute_reference,
    StageName.TRAIN_DPO: plan_train_dpo,
    StageName.TRAIN_POLICY: plan_train_policy,
    StageName.ANSWER_SETS: plan_answer_sets,
    StageName.EVALUATE_SETS: plan_evaluate_sets,
    StageName.SAMPLE_COMPLETIONS: plan_sample_completions,
    StageName.EVALUATE_POLICY: plan_evaluate_policy,
}
