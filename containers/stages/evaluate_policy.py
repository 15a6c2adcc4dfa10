"""evaluate_policy: compare policy and reference on held-out prompts, by the rewards that trained the policy."""

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import torch

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.names import COMPLETIONS_FILE, MODEL_FOLDER, PLOTS_FOLDER, POLICY_EVALUATION_FILE
from containers.contracts.outcome import Metric
from containers.distributed.devices import compute_device, compute_dtype
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, DivergedError
from containers.models.loading import load_causal_model, load_tokenizer, num_embedding_rows, position_limit
from containers.rewards.base import Answered, close_rewards, start_rewards
from containers.rewards.judging import Judged, compared_terms, judge
from containers.rollouts.comparison import ComparedPrompt, compare_policies, write_policy_plots
from containers.rollouts.generate import Completion, completion_logprobs, generate_completions
from containers.rollouts.prompts import PolicyPrompt, check_lengths, opening_of, read_evaluation_prompts, seeded_subset

_PROGRESS_INTERVAL_S = 1.0


def run(context: StageContext) -> tuple[Metric, ...]:
    """Generate with both models, score both, and write `policy_evaluation.json`, `completions.parquet` and plots.

    The reference is the model that policy training started from. Both answer the same prompts with the same seed and
    temperature. Only one model is in memory at a time.

    Raises:
        BadDataError: fewer than two held-out prompts fit.
        DivergedError: a score or log-probability is not finite.
    """
    config = context.spec.config
    if not isinstance(config, EvaluatePolicyConfig):
        raise BadConfigError(f"evaluate_policy was given the config of {config.stage}.")
    prompts = _held_out_prompts(context, config)
    policy_folder = context.input_path("policy") / MODEL_FOLDER
    policy, logprobs = _write(context, config, prompts, policy_folder, name="policy", of_policy=None)
    reference, logprobs_of_reference = _write(
        context, config, prompts, context.input_path("start_model"), name="reference", of_policy=policy
    )
    log_ratios = [own - other for own, other in zip(logprobs, logprobs_of_reference, strict=True)]
    compared = _compare_prompts(context, config, prompts, policy, reference, log_ratios=log_ratios)
    evaluation = compare_policies(
        compared, confidence=config.confidence, num_samples=config.num_samples, terms=compared_terms(config.rewards)
    )
    (context.output / POLICY_EVALUATION_FILE).write_text(evaluation.model_dump_json(indent=2), encoding="utf-8")
    _write_completions(compared, context.output / COMPLETIONS_FILE)
    write_policy_plots(compared, context.output / PLOTS_FOLDER)
    figures = (value for _, value in evaluation if isinstance(value, Metric))
    of_terms = (metric for term in evaluation.terms for metric in (term.policy, term.reference, term.difference))
    return (*figures, *of_terms, *_empty_counts(context, compared))


def _held_out_prompts(context: StageContext, config: EvaluatePolicyConfig) -> tuple[PolicyPrompt, ...]:
    """Return the prompts to answer; note how many were left out and how many were drawn."""
    folder = context.input_path("policy") / MODEL_FOLDER
    tokenizer = load_tokenizer(folder, origin=context.input("policy").origin)
    found = read_evaluation_prompts(
        context.input_path("prompts"), tokenizer, config, num_rows=num_embedding_rows(folder)
    )
    prompts = seeded_subset(found.prompts, limit=config.max_prompts, seed=context.spec.seed)
    context.recorder.note(
        f"{len(prompts)} of {len(found.prompts)} held-out prompts are answered. {found.left_out_text}".rstrip()
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
) -> tuple[list[Completion], list[float]]:
    """Return completions of the model in `folder`, and log-probabilities of the policy's completions under it.

    Args:
        of_policy: the policy's completions; None if that model is the policy.
    """
    profile = context.spec.profile
    model = load_causal_model(folder, dtype=compute_dtype(profile), device=compute_device(profile))
    check_lengths(config, max_positions=position_limit(model), name=name)
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
        # Greedy completions come from no distribution; use the models' own probabilities instead.
        temperature=config.temperature or 1.0,
        on_batch=_progress(context, len(measured), text=f"probabilities under the {name}"),
    )
    _release(model)
    return completions, logprobs


def _compare_prompts(
    context: StageContext,
    config: EvaluatePolicyConfig,
    prompts: Sequence[PolicyPrompt],
    policy: Sequence[Completion],
    reference: Sequence[Completion],
    *,
    log_ratios: Sequence[float],
) -> list[ComparedPrompt]:
    """Return both models' completions with their rewards, by prompt."""
    size = config.completions_per_prompt
    repeated = [prompt for prompt in prompts for _ in range(size)]
    found = _judged(context, config, repeated, policy, reference)
    if not torch.isfinite(torch.tensor(log_ratios)).all():
        raise DivergedError("A log-probability of the policy's completions is not finite; the policy cannot be judged.")

    def part(values: Sequence[float], start: int) -> tuple[float, ...]:
        return tuple(values[start : start + size])

    def of_terms(start: int) -> dict[str, tuple[float, ...]]:
        return {name: part(values, start) for name, values in found.values.items()}

    return [
        ComparedPrompt(
            prompt=prompt,
            policy=tuple(policy[start : start + size]),
            reference=tuple(reference[start : start + size]),
            rewards_policy=part(found.totals, start),
            rewards_reference=part(found.totals, len(repeated) + start),
            log_ratios=part(log_ratios, start),
            values_policy=of_terms(start),
            values_reference=of_terms(len(repeated) + start),
        )
        for start, prompt in zip(range(0, len(repeated), size), prompts, strict=True)
    ]


def _judged(
    context: StageContext,
    config: EvaluatePolicyConfig,
    prompts: Sequence[PolicyPrompt],
    policy: Sequence[Completion],
    reference: Sequence[Completion],
) -> Judged:
    """Return what the rewards say about the policy's completions, and then the reference's."""
    tokenizer = load_tokenizer(context.input_path("policy") / MODEL_FOLDER, origin=context.input("policy").origin)
    opening = opening_of(tokenizer, thinks=config.enable_thinking)
    answered = [
        Answered.of(prompt, completion, opening=opening)
        for prompt, completion in zip([*prompts, *prompts], [*policy, *reference], strict=True)
    ]
    started = start_rewards(context, config)
    try:
        return judge(started, answered)
    finally:
        close_rewards(started)


def _empty_counts(context: StageContext, compared: Sequence[ComparedPrompt]) -> tuple[Metric, ...]:
    """Number of completions without text; they are scored as they are."""
    texts = {
        "policy": [item.text for prompt in compared for item in prompt.policy],
        "reference": [item.text for prompt in compared for item in prompt.reference],
    }
    metrics = []
    for name, written in texts.items():
        num_empty = sum(not text.strip() for text in written)
        if num_empty:
            context.recorder.note(f"{num_empty} of {len(written)} completions of the {name} are empty.")
        metrics.append(Metric(name=f"num_empty_{name}", value=num_empty, unit="completions", count=len(written)))
    return tuple(metrics)


def _write_completions(compared: Sequence[ComparedPrompt], path: Path) -> None:
    """Write one row per prompt and completion: both texts, rewards, lengths, and the policy's log-ratio."""
    rows: list[dict[str, Any]] = [
        {
            "prompt_id": item.prompt.prompt_id,
            "domain": item.prompt.domain,
            "prompt": [dict(message) for message in item.prompt.conversation],
            "number": number,
            "policy": item.policy[number].text,
            "reference": item.reference[number].text,
            "reward_policy": item.rewards_policy[number],
            "reward_reference": item.rewards_reference[number],
            "values_policy": {name: values[number] for name, values in item.values_policy.items()},
            "values_reference": {name: values[number] for name, values in item.values_reference.items()},
            "winner": item.winner(number, number),
            "log_ratio": item.log_ratios[number],
            "num_tokens_policy": len(item.policy[number].completion_ids),
            "num_tokens_reference": len(item.reference[number].completion_ids),
            "ended_policy": item.policy[number].ended,
            "ended_reference": item.reference[number].ended,
        }
        for item in compared
        for number in range(len(item.policy))
    ]
    parquet.write_table(pa.Table.from_pylist(rows), path)


def _progress(context: StageContext, total: int, *, text: str) -> Callable[[int], None]:
    """Return a callback that reports progress to the recorder, at most once a second and at the end."""
    told_at_s = -_PROGRESS_INTERVAL_S

    def tell(done: int) -> None:
        nonlocal told_at_s
        if time.monotonic() - told_at_s >= _PROGRESS_INTERVAL_S or done == total:
            told_at_s = time.monotonic()
            context.recorder.progress(done, total, unit="completions", text=text)

    return tell


def _release(model: Any) -> None:
    """Free the model's GPU memory for the next model."""
    model.to("meta")
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
