"""`--debug`: every stage of a run in a few minutes at most, to check that it works. Its figures mean nothing.

Each training takes two steps, evaluates after each, and saves; rows, prompts and completions are few; the gates are
waived. The run has its own name, folder and store, so that it cannot be mistaken for a real run, and the tag `debug`.
"""

import json
import math

from containers.contracts.identity import config_profile
from containers.contracts.names import StageName
from tasks.config.run import RunConfig
from tasks.config.sources import DatasetSource

DEBUG_TAG = "debug"
_SUFFIX = "-debug"
_LONGEST_NAME = 63
_NUM_STEPS = 2
_NUM_GENERATIONS = 2
_MAX_ROWS = 96
_MAX_COMPLETION_TOKENS = 16
_NUM_PROMPTS = 4
_WAIVER = {
    "by": "debug",
    "reason": "a debug run trains for two steps, so its model cannot pass; nothing of it may be used",
}


def debug_settings(config: RunConfig) -> tuple[str, ...]:
    """The overrides, as `key=value`, that turn this run into a debug run."""
    settings = {
        **_own_place(config),
        **_few_rows(config),
        **_short_trainings(config),
        **_short_evaluations(config),
        "gates.reward_model.waive": _WAIVER,
        "gates.reward_model.approval": "none",
        "gates.policy.waive": _WAIVER,
        "gates.policy.approval": "none",
        "write_report.title": f"DEBUG, no real run: {config.write_report.title}",
    }
    # JSON is YAML.
    return tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())


def debug_notice(config: RunConfig) -> str:
    """Notice for the user who starts the debug run `config`."""
    return (
        f"Debug run {config.run.name}: {_NUM_STEPS} steps of each training on at most {_MAX_ROWS} rows, gates waived. "
        f"Its figures mean nothing. It writes only to {config.output_dir}: store and champion of real runs stay as "
        f"they are. Suites and validation file are not read."
    )


def is_debug(config: RunConfig) -> bool:
    """Whether this is a debug run."""
    return DEBUG_TAG in config.run.tags


def _own_place(config: RunConfig) -> dict[str, object]:
    folder = config.output_dir.with_name(f"{config.output_dir.name}{_SUFFIX}")
    return {
        "run.name": f"{config.run.name[: _LONGEST_NAME - len(_SUFFIX)].rstrip('-')}{_SUFFIX}",
        "run.tags": [*config.run.tags, DEBUG_TAG],
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


def _few_rows(config: RunConfig) -> dict[str, object]:
    settings: dict[str, object] = {
        "filter_dataset.max_rows": _MAX_ROWS,
        **_one_file(config),
        "filter_dataset.validation_fraction": 0.2,
        "filter_dataset.minimum_train_pairs": 1,
        "filter_dataset.minimum_validation_pairs": 1,
    }
    if config.filter_dataset.policy_prompt_fraction:
        settings["filter_dataset.policy_prompt_fraction"] = 0.3
        settings["filter_dataset.policy_eval_prompt_fraction"] = 0.5
    if config.prompts is not None:
        settings["filter_prompts.max_rows"] = _MAX_ROWS
        settings["filter_prompts.evaluation_fraction"] = 0.5
    if config.demonstrations is not None:
        settings["filter_demonstrations.max_rows"] = _MAX_ROWS
        settings["filter_demonstrations.validation_fraction"] = 0.2
    return settings


def _short_trainings(config: RunConfig) -> dict[str, object]:
    ranks = config.gpu_profile.num_processes
    settings: dict[str, object] = {}
    if config.has_policy:
        writing_ranks = config_profile(config.gpu_profile, config.train_policy).num_processes
        settings = {
            "train_policy.num_iterations": 1,
            "train_policy.rollout_batch_size": None,
            "train_policy.num_generations": _NUM_GENERATIONS,
            "train_policy.global_batch_size": math.lcm(writing_ranks, _NUM_GENERATIONS),
            "train_policy.max_completion_length": _short(config.train_policy.max_completion_length),
            "train_policy.schedule": {"max_steps": _NUM_STEPS, "save_steps": _NUM_STEPS},
        }
    if config.has_policy and config.train_policy.has_critic:
        settings["train_policy.critic.warmup_steps"] = _NUM_STEPS - 1
    for section in (StageName.TRAIN_SFT, StageName.TRAIN_REWARD_MODEL, StageName.TRAIN_DPO):
        if config.takes_part(section):
            settings[f"{section}.global_batch_size"] = ranks
            settings[f"{section}.schedule"] = {"max_steps": _NUM_STEPS, "eval_steps": 1, "save_steps": _NUM_STEPS}
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
        settings |= {
            "answer_sets.max_items": _NUM_PROMPTS,
            "answer_sets.max_completion_length": _short(config.answer_sets.max_completion_length),
        }
    if config.has_policy:
        settings |= {
            "evaluate_policy.max_prompts": _NUM_PROMPTS,
            "evaluate_policy.completions_per_prompt": 1,
            # At least as many as the policy was trained to write.
            "evaluate_policy.max_completion_length": _short(config.train_policy.max_completion_length),
        }
    return settings


def _short(num_tokens: int) -> int:
    return min(num_tokens, _MAX_COMPLETION_TOKENS)
