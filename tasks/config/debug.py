"""`--debug`: every stage of a run in a few minutes at most, to check that it works. Its figures mean nothing.

Each training takes two steps, evaluates after each, and saves; rows, prompts and completions are few; the gates are
waived. The run has its own name, folder and store, so that it cannot be mistaken for a real run, and the tag `debug`.

`--debug-full` keeps batches, lengths, tokens at a time, model and profile, so that memory and speed of a step are the
real run's. It has more rows: enough for full batches.
"""

import json
import math
from typing import Literal

from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.identity import config_profile
from containers.contracts.names import StageName
from tasks.config.run import RunConfig
from tasks.config.sources import DatasetSource

DebugShapes = Literal["small", "full"]
DEBUG_TAG, _FULL_TAG = "debug", "full-shapes"
_SUFFIX: dict[DebugShapes, str] = {"small": "-debug", "full": "-debug-full"}
_LONGEST_NAME = 63
_NUM_STEPS = 2
_NUM_GENERATIONS = 2
_MAX_ROWS = 96
# With full shapes: rows for so many steps of the largest batch. Filters and the held-out parts take most of them.
_STEPS_OF_ROWS = 8
_HELD_OUT: dict[DebugShapes, float] = {"small": 0.2, "full": 0.1}
_MAX_COMPLETION_TOKENS = 16
_NUM_PROMPTS = 4
_SHOWN: dict[DebugShapes, str] = {"small": "", "full": " at full shapes"}
_WAIVER = {
    "by": "debug",
    "reason": "a debug run trains for two steps, so its model cannot pass; nothing of it may be used",
}


def debug_settings(config: RunConfig, *, shapes: DebugShapes = "small") -> tuple[str, ...]:
    """The overrides, as `key=value`, that turn this run into a debug run.

    Args:
        shapes: `small`: the smallest batches and short completions; `full`: the run's own.
    """
    settings = {
        **_own_place(config, shapes),
        **_few_rows(config, shapes),
        **_short_trainings(config),
        **_short_evaluations(config),
        **(_small_shapes(config) if shapes == "small" else {}),
        "gates.reward_model.waive": _WAIVER,
        "gates.reward_model.approval": "none",
        "gates.policy.waive": _WAIVER,
        "gates.policy.approval": "none",
        "write_report.title": f"DEBUG{_SHOWN[shapes]}, no real run: {config.write_report.title}",
    }
    # JSON is YAML.
    return tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())


def debug_notice(config: RunConfig) -> str:
    """Notice for the user who starts the debug run `config`."""
    rows = config.filter_dataset.max_rows or 0
    shapes: DebugShapes = "full" if _FULL_TAG in config.run.tags else "small"
    meaning = {
        "small": "Its figures mean nothing.",
        "full": "Model, profile, batches, lengths and tokens at a time are the run's own, so memory and time of a step "
        "are too, as far as these rows are as long as all; its other figures mean nothing.",
    }
    return (
        f"Debug run {config.run.name}{_SHOWN[shapes]}: {_NUM_STEPS} steps of each training on at most {rows:,} rows, "
        f"gates waived. {meaning[shapes]} It writes only to {config.output_dir}: store and champion of real runs stay "
        f"as they are. Suites and validation file are not read."
    )


def is_debug(config: RunConfig) -> bool:
    """Whether this is a debug run."""
    return DEBUG_TAG in config.run.tags


def _own_place(config: RunConfig, shapes: DebugShapes) -> dict[str, object]:
    suffix = _SUFFIX[shapes]
    folder = config.output_dir.with_name(f"{config.output_dir.name}{suffix}")
    return {
        "run.name": f"{config.run.name[: _LONGEST_NAME - len(suffix)].rstrip('-')}{suffix}",
        "run.tags": [*config.run.tags, DEBUG_TAG, *([_FULL_TAG] if shapes == "full" else [])],
        "run.output_dir": str(folder),
        "run.store_dir": str(folder / "store"),
    }


def _one_file(config: RunConfig) -> dict[str, object]:
    """A validation file would be used whole."""
    settings: dict[str, object] = {}
    for section in ("dataset", "prompts", "demonstrations"):
        source: DatasetSource | None = getattr(config, section)
        if source is not None:
            settings |= {f"{section}.validation": None, f"{section}.validation_split": None}
            settings |= {} if source.split else {f"{section}.subset": None}
    return settings


def _few_rows(config: RunConfig, shapes: DebugShapes) -> dict[str, object]:
    rows = _MAX_ROWS if shapes == "small" else max(_MAX_ROWS, _STEPS_OF_ROWS * _largest_batch(config))
    settings: dict[str, object] = {
        "filter_dataset.max_rows": rows,
        **_one_file(config),
        "filter_dataset.validation_fraction": _HELD_OUT[shapes],
        "filter_dataset.minimum_train_pairs": 1,
        "filter_dataset.minimum_validation_pairs": 1,
    }
    if config.filter_dataset.policy_prompt_fraction:
        settings["filter_dataset.policy_prompt_fraction"] = 0.3
        settings["filter_dataset.policy_eval_prompt_fraction"] = 0.5
    if config.prompts is not None:
        settings["filter_prompts.max_rows"] = rows
        settings["filter_prompts.evaluation_fraction"] = 0.5
    if config.demonstrations is not None:
        settings["filter_demonstrations.max_rows"] = rows
        settings["filter_demonstrations.validation_fraction"] = _HELD_OUT[shapes]
    return settings


def _largest_batch(config: RunConfig) -> int:
    """Return the most pairs, demonstrations or prompts that a step of a training uses."""
    usual = config.gpu_profile.default_global_batch_size
    sizes = [usual, *(section.global_batch_size or usual for _, section in _trained_on_rows(config))]
    if config.has_policy:
        policy = config.train_policy
        written = policy.rollout_batch_size or policy.global_batch_size or usual
        sizes.append(math.ceil(written / policy.num_generations))
    return max(sizes)


def _trained_on_rows(
    config: RunConfig,
) -> list[tuple[StageName, TrainSftConfig | TrainRewardModelConfig | TrainDpoConfig]]:
    """Return the trainings that take part and have no rewards, with their sections."""
    names = (StageName.TRAIN_SFT, StageName.TRAIN_REWARD_MODEL, StageName.TRAIN_DPO)
    return [(name, getattr(config, name)) for name in names if config.takes_part(name)]


def _short_trainings(config: RunConfig) -> dict[str, object]:
    settings: dict[str, object] = {}
    if config.has_policy:
        settings["train_policy.schedule"] = {"max_steps": _NUM_STEPS, "save_steps": _NUM_STEPS}
    if config.has_policy and config.train_policy.has_critic:
        settings["train_policy.critic.warmup_steps"] = _NUM_STEPS - 1
    for name, _ in _trained_on_rows(config):
        settings[f"{name}.schedule"] = {"max_steps": _NUM_STEPS, "eval_steps": 1, "save_steps": _NUM_STEPS}
    return settings


def _short_evaluations(config: RunConfig) -> dict[str, object]:
    settings: dict[str, object] = {}
    if config.has_reward_model:
        settings |= {
            "evaluate_reward_model.suites": [],
            "evaluate_reward_model.num_bootstrap": 100,
            "evaluate_reward_model.num_edited_pairs": _NUM_PROMPTS,
        }
    if config.answer_sets is not None:
        settings["answer_sets.max_items"] = _NUM_PROMPTS
    if config.has_policy:
        settings |= {"evaluate_policy.max_prompts": _NUM_PROMPTS, "evaluate_policy.completions_per_prompt": 1}
    return settings


def _small_shapes(config: RunConfig) -> dict[str, object]:
    """The smallest batches, and short completions."""
    ranks = config.gpu_profile.num_processes
    settings: dict[str, object] = {f"{name}.global_batch_size": ranks for name, _ in _trained_on_rows(config)}
    if config.has_policy:
        writing_ranks = config_profile(config.gpu_profile, config.train_policy).num_processes
        settings |= {
            "train_policy.num_iterations": 1,
            "train_policy.rollout_batch_size": None,
            "train_policy.num_generations": _NUM_GENERATIONS,
            "train_policy.global_batch_size": math.lcm(writing_ranks, _NUM_GENERATIONS),
            "train_policy.max_completion_length": _short(config.train_policy.max_completion_length),
            # At least as many as the policy was trained to write.
            "evaluate_policy.max_completion_length": _short(config.train_policy.max_completion_length),
        }
    if config.answer_sets is not None:
        settings["answer_sets.max_completion_length"] = _short(config.answer_sets.max_completion_length)
    return settings


def _short(num_tokens: int) -> int:
    return min(num_tokens, _MAX_COMPLETION_TOKENS)
