"""What a run will do, before anything is spent: stages, steps, memory, disk and time. No GPU, torch or network."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from containers.contracts.hardware import GpuProfile
from containers.contracts.names import StageName
from flows import estimates
from flows.config_errors import ConfigError, InvalidConfigError, Mistake
from flows.config_loading import LoadedConfig
from flows.model_shape import total_parameters
from flows.plan_figures import CachedWords, Figure, Known, StagePlan, count_figure, disk_figure, time_figure
from flows.plan_inputs import Count, FoundShape, data_size, find_model_shape
from flows.plan_limits import (
    floor_mistakes,
    likely_troubles,
    policy_bootstrap_seconds,
    reward_model_bootstrap_seconds,
)
from flows.plan_training import plan_train_policy, plan_train_reward_model, plan_train_sft


@dataclass(frozen=True)
class RunPlan:
    """The whole run.

    Attributes:
        mistakes: why it cannot work, whatever the data hold.
        warnings: what will probably go wrong or take long, a sentence each.
    """

    name: str
    config_path: Path
    profile: GpuProfile
    model: str
    dataset: str
    stages: tuple[StagePlan, ...]
    assumptions: tuple[str, ...]
    mistakes: tuple[Mistake, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def disk_bytes(self) -> float:
        """Estimated bytes that the run will write, as far as they are known."""
        return sum(stage.disk.value or 0 for stage in self.stages if stage.disk)

    @property
    def host_memory_bytes(self) -> float:
        """Estimated memory outside GPUs that the largest stage takes, as far as it is known."""
        return max((stage.host_memory.value or 0 for stage in self.stages if stage.host_memory), default=0)

    @property
    def seconds(self) -> float:
        """Estimated duration, as far as it is known."""
        return sum(stage.time.value or 0 for stage in self.stages if stage.time)


def plan_run(
    loaded: LoadedConfig,
    *,
    cached: CachedWords = lambda stage: "unknown until inputs exist",
    model_config: Path | None = None,
) -> RunPlan:
    """The plan of a run that can work.

    Args:
        cached: says for a stage whether its result is there already.
        model_config: a config.json to take the model's shape from.

    Raises:
        InvalidConfigError: it cannot, for example since a schedule would never take a step, evaluate or save.
        ConfigError: `model_config` cannot be read.
    """
    plan = draft_plan(loaded, cached=cached, model_config=model_config)
    if plan.mistakes:
        raise InvalidConfigError(str(loaded.path), plan.mistakes)
    return plan


def draft_plan(
    loaded: LoadedConfig,
    *,
    cached: CachedWords = lambda stage: "unknown until inputs exist",
    model_config: Path | None = None,
) -> RunPlan:
    """As `plan_run`, with the mistakes in the plan."""
    config = loaded.config
    model: FoundShape | None = None
    mistakes: list[Mistake] = []
    try:
        model = find_model_shape(config, model_config=model_config)
    except ConfigError as error:
        if model_config is not None:
            raise
        mistakes.append(Mistake("", str(error)))
    known = Known(config, loaded.profile, data_size(config), model, cached, mistakes)
    known.mistakes.extend(floor_mistakes(known))
    stages = tuple(_plan_stage(known, stage) for stage in config.stages)
    return RunPlan(
        name=config.run.name,
        config_path=loaded.path,
        profile=loaded.profile,
        model=model.words if model else "unknown shape: pass --model-config with the model's config.json",
        dataset=known.data.words,
        stages=stages,
        assumptions=_assumptions(loaded.profile),
        mistakes=tuple(known.mistakes),
        warnings=tuple(likely_troubles(known, stages)),
    )


def _assumptions(profile: GpuProfile) -> tuple[str, ...]:
    speed = estimates.assumed_speed(profile)
    return (
        f"speed: {speed.words}; not measured on this machine",
        f"conversations fill {estimates.FILLED_FRACTION:.0%} of max_length; memory is reckoned at the full length",
        "trained weights, gradients and AdamW's moments in float32, frozen weights in the profile's precision",
        "completions are generated to their full length, one GPU each for the evaluations",
    )


def _plan_stage(known: Known, stage: StageName) -> StagePlan:
    return _PLANNERS[stage](known)


def _check_system(known: Known) -> StagePlan:
    return StagePlan(StageName.CHECK_SYSTEM, "always runs")


def _filter_dataset(known: Known) -> StagePlan:
    data = known.data
    return StagePlan(
        StageName.FILTER_DATASET,
        known.cached(StageName.FILTER_DATASET),
        figures=(
            count_figure(_rows_name(data.rows), data.rows, "rows"),
            count_figure("training pairs", data.train_pairs, "pairs"),
            count_figure("validation pairs", data.validation_pairs, "pairs"),
            count_figure("policy training prompts", data.policy_train_prompts, "prompts"),
            count_figure("policy evaluation prompts", data.policy_eval_prompts, "prompts"),
        ),
        time=time_figure(0.0 if data.rows is None else data.rows.value * 2e-3),
    )


def _build_base_model(known: Known) -> StagePlan:
    stage = StageName.BUILD_BASE_MODEL
    if known.model is None:
        return StagePlan(stage, known.cached(stage))
    total = total_parameters(known.model.shape, head="language")
    return StagePlan(
        stage,
        known.cached(stage),
        figures=(Figure("parameters", total, "parameters", known.model.origin),),
        disk=disk_figure(total * 4),
        time=time_figure(0.0),
    )


def _evaluate_reward_model(known: Known) -> StagePlan:
    config, stage = known.config.evaluate_reward_model, StageName.EVALUATE_REWARD_MODEL
    pairs = known.data.validation_pairs
    seconds = None
    if pairs is not None and known.model is not None:
        seconds = estimates.forward_seconds(
            known.model.shape, known.profile, sequences=2 * pairs.value, max_tokens=config.max_length, num_processes=1
        )
        seconds += reward_model_bootstrap_seconds(known)
    return StagePlan(
        stage,
        known.cached(stage),
        figures=(
            count_figure("validation pairs", pairs, "pairs"),
            Figure("further pair files", len(config.pair_files), "files", "exact"),
        ),
        time=time_figure(seconds, note="without further pair files" if config.pair_files else ""),
    )


def _evaluate_policy(known: Known) -> StagePlan:
    config, stage = known.config.evaluate_policy, StageName.EVALUATE_POLICY
    prompts = known.data.policy_eval_prompts
    if prompts is not None and config.max_prompts is not None:
        prompts = Count(min(prompts.value, config.max_prompts), prompts.origin)
    seconds = None
    if prompts is not None and known.model is not None:
        shape, completions = known.model.shape, prompts.value * config.completions_per_prompt
        one_policy = estimates.generation_seconds(
            shape,
            known.profile,
            total=total_parameters(shape, head="language"),
            sequences=completions,
            batch=config.batch_size,
            max_tokens=config.max_completion_length,
        )
        # Policy and reference write; both judge what the policy wrote, and the reward model judges both.
        judging = 4 * estimates.forward_seconds(
            shape,
            known.profile,
            sequences=completions,
            max_tokens=config.max_prompt_length + config.max_completion_length,
            num_processes=1,
        )
        seconds = 2 * one_policy + judging + policy_bootstrap_seconds(known)
    return StagePlan(
        stage, known.cached(stage), figures=(count_figure("prompts", prompts, "prompts"),), time=time_figure(seconds)
    )


def _write_report(known: Known) -> StagePlan:
    return StagePlan(StageName.WRITE_REPORT, known.cached(StageName.WRITE_REPORT), time=time_figure(0.0))


_PLANNERS: dict[StageName, Callable[[Known], StagePlan]] = {
    StageName.CHECK_SYSTEM: _check_system,
    StageName.FILTER_DATASET: _filter_dataset,
    StageName.BUILD_BASE_MODEL: _build_base_model,
    StageName.TRAIN_SFT: plan_train_sft,
    StageName.TRAIN_REWARD_MODEL: plan_train_reward_model,
    StageName.EVALUATE_REWARD_MODEL: _evaluate_reward_model,
    StageName.TRAIN_POLICY: plan_train_policy,
    StageName.EVALUATE_POLICY: _evaluate_policy,
    StageName.WRITE_REPORT: _write_report,
}


def _rows_name(rows: Count | None) -> str:
    """A published set is known by the rows that its filter leaves, a file by its lines."""
    return "rows in English" if rows is not None and rows.origin == "estimated" else "rows read"
