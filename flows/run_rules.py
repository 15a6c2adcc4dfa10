"""The rules that concern more than one key of a run. Pure; each says the key to change, the numbers, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from containers.contracts.hardware import GpuProfile
from containers.contracts.stage_configs import LoraSettings, TrainingSchedule
from containers.schedule import ScheduleError, plan_batch
from flows.config_errors import Mistake

if TYPE_CHECKING:
    from flows.run_config import RunConfig

# The pair file that evaluate_reward_model reports first: the validation split of the dataset itself.
_VALIDATION = "validation"


@dataclass(frozen=True)
class Rule:
    """A check that reads these sections and no others."""

    sections: frozenset[str]
    check: Callable[[RunConfig], Iterator[Mistake]]


def broken_rules(config: RunConfig, *, valid_sections: Container[str] | None = None) -> list[Mistake]:
    """Every mistake that several keys make together.

    Args:
        valid_sections: the sections that could be read; a rule that needs another one is left for the next attempt.
            None: all.
    """
    return [
        mistake
        for rule in _RULES
        if valid_sections is None or all(section in valid_sections for section in rule.sections)
        for mistake in rule.check(config)
    ]


def _one_base_model(config: RunConfig) -> Iterator[Mistake]:
    if config.base_model is not None and config.build_base_model is not None:
        yield Mistake("base_model", "both base_model and build_base_model are given. Keep exactly one of them.")
    if config.base_model is None and config.build_base_model is None:
        yield Mistake(
            "base_model",
            "neither base_model nor build_base_model is given. Give exactly one: `base_model: {hub_id: …, "
            "revision: …}` to start from a model, or `build_base_model: {…}` to build a small one.",
        )


def _tokenizer_of_built_model(config: RunConfig) -> Iterator[Mistake]:
    build = config.build_base_model
    if config.tokenizer_file is not None and build is None:
        yield Mistake("tokenizer_file", "is given, but only build_base_model reads it. Leave it out.")
    if build is None:
        return
    if config.tokenizer_file is not None and build.vocabulary_size is not None:
        yield Mistake(
            "build_base_model.vocabulary_size",
            f"{build.vocabulary_size} beside tokenizer_file, which brings its own vocabulary. Set it to null.",
        )
    if config.tokenizer_file is None and build.vocabulary_size is None:
        yield Mistake(
            "build_base_model.vocabulary_size",
            "is null, so no tokenizer can be trained, and there is no tokenizer_file. Give one of the two.",
        )


def _tokens_need_a_tokenizer(config: RunConfig) -> Iterator[Mistake]:
    if config.filter_dataset.max_tokens is not None and config.base_model is None:
        yield Mistake(
            "filter_dataset.max_tokens",
            f"{config.filter_dataset.max_tokens} needs the tokenizer of a base_model; build_base_model makes its own "
            f"after the filter. Use max_characters.",
        )


def _held_out_prompts(config: RunConfig) -> Iterator[Mistake]:
    filters = config.filter_dataset
    # Without a share of its own the policy is evaluated on the validation prompts.
    if filters.policy_prompt_fraction and filters.policy_eval_prompt_fraction == 0:
        yield Mistake("filter_dataset.policy_eval_prompt_fraction", "0 leaves no prompt to evaluate the policy on.")
    if filters.policy_prompt_fraction and filters.policy_eval_prompt_fraction == 1:
        yield Mistake("filter_dataset.policy_eval_prompt_fraction", "1 leaves no prompt to train the policy on.")
    if filters.policy_prompt_fraction == 1:
        yield Mistake("filter_dataset.policy_prompt_fraction", "1 leaves no pair to train the reward model on.")
    if config.dataset.validation is None and filters.validation_fraction in (0, 1):
        lost = "judge the reward model by" if filters.validation_fraction == 0 else "train the reward model on"
        yield Mistake(
            "filter_dataset.validation_fraction",
            f"{filters.validation_fraction:g} leaves no pair to {lost}, since dataset.validation is null.",
        )


def _batches_divide(config: RunConfig) -> Iterator[Mistake]:
    wanted: list[tuple[str, int | None, int]] = [
        ("train_reward_model", config.train_reward_model.global_batch_size, 1),
        ("train_policy", config.train_policy.global_batch_size, config.train_policy.num_generations),
    ]
    if config.train_sft is not None:
        wanted.insert(0, ("train_sft", config.train_sft.global_batch_size, 1))
    for section, size, multiple_of in wanted:
        yield from _batch_divides(section, size, config.gpu_profile, multiple_of=multiple_of)


def _batch_divides(section: str, size: int | None, profile: GpuProfile, *, multiple_of: int) -> Iterator[Mistake]:
    try:
        plan_batch(size, profile, multiple_of=multiple_of)
    except ScheduleError as error:
        origin = f" It is the default of gpu_profile `{profile.name}`." if size is None else ""
        yield Mistake(f"{section}.global_batch_size", f"{error}{origin}")


def _schedules_agree(config: RunConfig) -> Iterator[Mistake]:
    """What can be decided without the number of rows; `rlhf plan` and the stage decide the rest."""
    reward, policy = config.train_reward_model.schedule, config.train_policy.schedule
    if config.train_sft is not None:
        yield from _schedule_agrees("train_sft.schedule", config.train_sft.schedule, evaluates=True)
    yield from _schedule_agrees("train_reward_model.schedule", reward, evaluates=True)
    yield from _schedule_agrees("train_policy.schedule", policy, evaluates=False)
    saves, iterations = policy.save_steps or policy.eval_steps, config.train_policy.num_iterations
    if saves is not None and saves % iterations:
        yield Mistake(
            "train_policy.schedule.save_steps",
            f"{saves} is no multiple of num_iterations {iterations}: a checkpoint would fall in the middle of a "
            f"generated batch, and training could not be resumed exactly. Nearest: "
            f"{saves // iterations * iterations or iterations} or {(saves // iterations + 1) * iterations}.",
        )


def _schedule_agrees(key: str, schedule: TrainingSchedule, *, evaluates: bool) -> Iterator[Mistake]:
    evals, saves, last = schedule.eval_steps, schedule.save_steps, schedule.max_steps
    if evaluates and evals is not None and saves is not None and saves % evals:
        yield Mistake(
            f"{key}.save_steps",
            f"{saves} is no multiple of eval_steps {evals}: the checkpoint that is best by evaluation could not be "
            f"kept. Nearest: {saves // evals * evals or evals} or {(saves // evals + 1) * evals}.",
        )
    if last is None:
        return
    if evaluates and evals is not None and evals > last:
        yield Mistake(f"{key}.eval_steps", f"{evals} would never evaluate: the run has {last} steps (max_steps).")
    if saves is not None and saves > last:
        yield Mistake(f"{key}.save_steps", f"{saves} would never save: the run has {last} steps (max_steps).")


def _lengths_agree(config: RunConfig) -> Iterator[Mistake]:
    reward = config.train_reward_model.max_length
    if config.evaluate_reward_model.max_length < reward:
        yield Mistake(
            "evaluate_reward_model.max_length",
            f"{config.evaluate_reward_model.max_length} is below train_reward_model.max_length {reward}: pairs of a "
            f"length between the two would train the model and never judge it. Use at least {reward}.",
        )
    train, evaluate = config.train_policy, config.evaluate_policy
    for key, lengths in (("train_policy", train), ("evaluate_policy", evaluate)):
        total = lengths.max_prompt_length + lengths.max_completion_length
        if total > reward:
            yield Mistake(
                f"{key}.max_completion_length",
                f"prompt {lengths.max_prompt_length} plus completion {lengths.max_completion_length} is {total} tokens;"
                f" the reward model was trained on at most {reward} (train_reward_model.max_length) and would judge "
                f"what it has never seen. Shorten one, or raise max_length.",
            )
    if evaluate.max_prompt_length < train.max_prompt_length:
        yield Mistake(
            "evaluate_policy.max_prompt_length",
            f"{evaluate.max_prompt_length} leaves out prompts that the policy was trained on with up to "
            f"{train.max_prompt_length} tokens (train_policy.max_prompt_length). Use at least as many.",
        )
    if evaluate.max_completion_length < train.max_completion_length:
        yield Mistake(
            "evaluate_policy.max_completion_length",
            f"{evaluate.max_completion_length} cuts off what the policy was trained to write in "
            f"{train.max_completion_length} tokens (train_policy.max_completion_length). Use at least as many.",
        )


def _built_model_fits(config: RunConfig) -> Iterator[Mistake]:
    build = config.build_base_model
    if build is None:
        return
    longest = {
        "train_reward_model.max_length": config.train_reward_model.max_length,
        "evaluate_reward_model.max_length": config.evaluate_reward_model.max_length,
    }
    if config.train_sft is not None:
        longest["train_sft.max_length"] = config.train_sft.max_length
    for key, length in longest.items():
        if length > build.max_position_embeddings:
            yield Mistake(
                key, f"{length} exceeds build_base_model.max_position_embeddings {build.max_position_embeddings}."
            )
    narrowest = min(
        build.hidden_size,
        build.intermediate_size,
        build.num_attention_heads * build.head_dim,
        build.num_key_value_heads * build.head_dim,
    )
    ranks: dict[str, LoraSettings | None] = {
        "train_sft.lora.r": config.train_sft.lora if config.train_sft is not None else None,
        "train_reward_model.lora.r": config.train_reward_model.lora,
        "train_policy.lora.r": config.train_policy.lora,
    }
    for key, lora in ranks.items():
        if lora is not None and lora.r > narrowest:
            yield Mistake(
                key,
                f"{lora.r} exceeds {narrowest}, the narrowest linear layer of build_base_model: that is no longer low "
                f"rank. Use at most {narrowest}, or `lora: null` to train all weights.",
            )


def _pair_files_have_names(config: RunConfig) -> Iterator[Mistake]:
    names = Counter(file.name for file in config.evaluate_reward_model.pair_files)
    for name, count in names.items():
        if count > 1:
            yield Mistake("evaluate_reward_model.pair_files", f"the name `{name}` is given {count} times.")
    if _VALIDATION in names:
        yield Mistake(
            "evaluate_reward_model.pair_files",
            f"the name `{_VALIDATION}` belongs to the validation split of the dataset; choose another.",
        )


def _rule(check: Callable[[RunConfig], Iterator[Mistake]], *sections: str) -> Rule:
    return Rule(frozenset(sections), check)


_RULES = (
    _rule(_one_base_model, "base_model", "build_base_model"),
    _rule(_tokenizer_of_built_model, "build_base_model", "tokenizer_file"),
    _rule(_tokens_need_a_tokenizer, "filter_dataset", "base_model"),
    _rule(_held_out_prompts, "filter_dataset", "dataset"),
    _rule(_batches_divide, "gpu_profile", "train_sft", "train_reward_model", "train_policy"),
    _rule(_schedules_agree, "train_sft", "train_reward_model", "train_policy"),
    _rule(_lengths_agree, "train_reward_model", "evaluate_reward_model", "train_policy", "evaluate_policy"),
    _rule(
        _built_model_fits,
        *("build_base_model", "train_sft", "train_reward_model", "evaluate_reward_model", "train_policy"),
    ),
    _rule(_pair_files_have_names, "evaluate_reward_model"),
)
