"""evaluate_policy: policy against reference on held-out prompts, judged by the reward model that trained it."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import torch

from containers.contracts.names import (
    COMPLETIONS_FILE,
    MERGED_FOLDER,
    MODEL_FOLDER,
    POLICY_EVAL_PROMPTS_FILE,
    POLICY_EVALUATION_FILE,
)
from containers.contracts.outcome import Metric
from containers.contracts.records import PolicyEvaluation
from containers.contracts.stage_configs import EvaluatePolicyConfig
from containers.stages.context import StageContext
from containers.stages.errors import BadConfigError, DivergedError
from containers.stages.models import compute_device, compute_dtype, load_causal_model, load_tokenizer
from containers.stages.policy_comparison import ComparedPrompt, compare_policies
from containers.stages.policy_plots import write_policy_plots
from containers.stages.prompts import PolicyPrompt, read_policy_prompts, seeded_subset
from containers.stages.rollouts import Completion, completion_logprobs, generate_completions
from containers.stages.scoring import RewardScorer

_PLOTS_FOLDER = "plots"
_PROGRESS_INTERVAL_S = 1.0


@dataclass(frozen=True)
class _Written:
    """What one model wrote, and the log-probabilities of the policy's completions under it."""

    completions: list[Completion]
    logprobs_of_policy: list[float]


def run(context: StageContext) -> tuple[Metric, ...]:
    """Generate with both, score both, and write `policy_evaluation.json`, `completions.parquet` and plots.

    The reference is the model that policy training started from. Both answer the same prompts with the same seed and
    temperature. One model is in memory at a time.

    Raises:
        BadDataError: no held-out prompt fits.
        DivergedError: a score or log-probability is not finite.
    """
    config = context.spec.config
    if not isinstance(config, EvaluatePolicyConfig):
        raise BadConfigError(f"evaluate_policy was given the config of {config.stage}.")
    prompts = _held_out_prompts(context, config)
    policy_folder = context.input_path("policy") / MODEL_FOLDER
    policy = _write(context, config, prompts, policy_folder, name="policy", of_policy=None)
    reference = _write(
        context, config, prompts, context.input_path("start_model"), name="reference", of_policy=policy.completions
    )
    compared = _compare_prompts(context, config, prompts, policy, reference)
    evaluation = compare_policies(
        compared,
        confidence=config.confidence,
        num_bootstrap=config.num_bootstrap,
        seed=context.spec.seed,
        num_samples=config.num_samples,
    )
    (context.output / POLICY_EVALUATION_FILE).write_text(evaluation.model_dump_json(indent=2), encoding="utf-8")
    _write_completions(compared, context.output / COMPLETIONS_FILE)
    write_policy_plots(compared, context.output / _PLOTS_FOLDER)
    return (*_figures(evaluation), *_empty_counts(context, compared))


def _held_out_prompts(context: StageContext, config: EvaluatePolicyConfig) -> tuple[PolicyPrompt, ...]:
    """The prompts that are answered; says how many were too long, and how many were drawn."""
    tokenizer = load_tokenizer(context.input_path("policy") / MODEL_FOLDER)
    found = read_policy_prompts(
        context.input_path("pairs") / POLICY_EVAL_PROMPTS_FILE, tokenizer, max_prompt_length=config.max_prompt_length
    )
    prompts = seeded_subset(found.prompts, limit=config.max_prompts, seed=context.spec.seed)
    context.recorder.note(
        f"{len(prompts)} held-out prompts of {len(found.prompts) + found.left_out} are answered; {found.left_out} are "
        f"longer than {config.max_prompt_length} tokens."
    )
    return prompts


def _write(
    context: StageContext,
    config: EvaluatePolicyConfig,
    prompts: Sequence[PolicyPrompt],
    folder: Path,
    *,
    name: str,
    of_policy: list[Completion] | None,
) -> _Written:
    """What the model in `folder` writes; `of_policy` None says that it is the policy itself."""
    profile = context.spec.profile
    model = load_causal_model(folder, dtype=compute_dtype(profile), device=compute_device(profile))
    tokenizer = load_tokenizer(folder)
    repeated = [prompt.token_ids for prompt in prompts for _ in range(config.completions_per_prompt)]
    completions = generate_completions(
        model,
        tokenizer,
        repeated,
        max_new_tokens=config.max_completion_length,
        temperature=config.temperature,
        batch_size=config.batch_size,
        seed=context.spec.seed,
        on_batch=_progress(context, len(repeated), text=f"{name} writes"),
    )
    measured = completions if of_policy is None else of_policy
    logprobs = completion_logprobs(
        model,
        measured,
        pad_id=int(tokenizer.pad_token_id),
        batch_size=config.batch_size,
        # Greedy completions come from no distribution; the models' own probabilities stand in.
        temperature=config.temperature or 1.0,
        on_batch=_progress(context, len(measured), text=f"probabilities under the {name}"),
    )
    _release(model)
    return _Written(completions=completions, logprobs_of_policy=logprobs)


def _compare_prompts(
    context: StageContext,
    config: EvaluatePolicyConfig,
    prompts: Sequence[PolicyPrompt],
    policy: _Written,
    reference: _Written,
) -> list[ComparedPrompt]:
    """Both models' completions with their rewards, by prompt."""
    profile = context.spec.profile
    scorer = RewardScorer.load(
        context.input_path("reward_model") / MERGED_FOLDER,
        device=compute_device(profile),
        dtype=compute_dtype(profile),
        max_length=_longest_conversation(config),
        batch_size=config.batch_size,
    )
    size = config.completions_per_prompt
    repeated = [prompt for prompt in prompts for _ in range(size)]
    rewards_policy = _scores(scorer, repeated, policy.completions)
    rewards_reference = _scores(scorer, repeated, reference.completions)
    log_ratios = [
        own - other for own, other in zip(policy.logprobs_of_policy, reference.logprobs_of_policy, strict=True)
    ]
    if not torch.isfinite(torch.tensor(log_ratios)).all():
        raise DivergedError("A log-probability of the policy's completions is not finite; the policy cannot be judged.")
    return [
        ComparedPrompt(
            prompt=prompt,
            policy=tuple(policy.completions[start : start + size]),
            reference=tuple(reference.completions[start : start + size]),
            rewards_policy=tuple(rewards_policy[start : start + size]),
            rewards_reference=tuple(rewards_reference[start : start + size]),
            log_ratios=tuple(log_ratios[start : start + size]),
        )
        for start, prompt in zip(range(0, len(repeated), size), prompts, strict=True)
    ]
