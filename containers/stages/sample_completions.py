"""sample_completions: policy and reference write on held-out prompts, once for every judge."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from containers.contracts.configs.sample_completions import SampleCompletionsConfig
from containers.contracts.names import MODEL_FOLDER, SAMPLED_FILE
from containers.contracts.outcome import Metric
from containers.distributed.devices import compute_dtype
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, DivergedError
from containers.harness.progress import progress_of
from containers.models.loading import load_tokenizer, num_embedding_rows, position_limit
from containers.models.over_gpus import writer_over_gpus
from containers.models.release import release
from containers.models.tensor_parallel import shell
from containers.rollouts.generate import Completion, completion_logprobs, generate_completions
from containers.rollouts.prompt_templates import opening_of
from containers.rollouts.prompts import PolicyPrompt, check_lengths, read_evaluation_prompts, seeded_subset
from containers.rollouts.sampled import Sampled, write_sampled
from containers.rollouts.vllm_server import vllm_version, vllm_writers


def run(context: StageContext) -> tuple[Metric, ...]:
    """Generate with both models and write `sampled.parquet`.

    The reference is the model that policy training started from. Both answer the same prompts with the same seed and
    temperature. Only one model is in memory at a time.

    Raises:
        BadDataError: fewer than two held-out prompts fit.
        DivergedError: a log-probability is not finite.
    """
    config = context.spec.config
    if not isinstance(config, SampleCompletionsConfig):
        raise BadConfigError(f"sample_completions was given the config of {config.stage}.")
    prompts = _held_out_prompts(context, config)
    policy_folder = context.input_path("policy") / MODEL_FOLDER
    policy, logprobs = _write(context, config, prompts, policy_folder, name="policy", of_policy=None)
    reference, logprobs_of_reference = _write(
        context, config, prompts, context.input_path("start_model"), name="reference", of_policy=policy
    )
    log_ratios = [own - other for own, other in zip(logprobs, logprobs_of_reference, strict=True)]
    if not torch.isfinite(torch.tensor(log_ratios)).all():
        raise DivergedError("A log-probability of the policy's completions is not finite; the policy cannot be judged.")
    tokenizer = load_tokenizer(policy_folder, origin=context.input("policy").origin)
    opening = opening_of(tokenizer, thinks=config.enable_thinking)
    sampled = Sampled(tuple(prompts), tuple(policy), tuple(reference), tuple(log_ratios), opening)
    write_sampled(sampled, context.output / SAMPLED_FILE)
    return (
        Metric(name="num_prompts", value=len(prompts), unit="prompts"),
        *_empty_counts(context, {"policy": policy, "reference": reference}),
    )


def _held_out_prompts(context: StageContext, config: SampleCompletionsConfig) -> tuple[PolicyPrompt, ...]:
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
    config: SampleCompletionsConfig,
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
    repeated = [prompt.token_ids for prompt in prompts for _ in range(config.completions_per_prompt)]
    settings: dict[str, Any] = {
        "max_new_tokens": config.max_completion_length,
        "temperature": config.temperature,
        "seed": context.spec.seed,
        "on_batch": progress_of(context, len(repeated), unit="completions", text=f"{name} writes"),
    }
    check_lengths(
        config, max_positions=position_limit(shell(AutoModelForCausalLM, folder, dtype=torch.bfloat16)), name=name
    )
    completions = _by_vllm(context, config, repeated, folder, settings) if config.rollout_engine == "vllm" else None
    (model, tokenizer), spread = writer_over_gpus(folder, profile, load_tokenizer(folder))
    check_lengths(config, max_positions=position_limit(model), name=name)
    if completions is None:
        completions = generate_completions(
            model, tokenizer, repeated, batch_size=_batch_size(config), spread=spread, **settings
        )
    measured = completions if of_policy is None else of_policy
    logprobs = completion_logprobs(
        model,
        measured,
        pad_id=int(tokenizer.pad_token_id),
        batch_size=_batch_size(config),
        # Greedy completions come from no distribution; use the models' own probabilities instead.
        temperature=config.temperature or 1.0,
        on_batch=progress_of(context, len(measured), unit="completions", text=f"probabilities under the {name}"),
        spread=spread,
    )
    if spread is not None:
        spread.close()
    release(model)
    return completions, logprobs


def _by_vllm(
    context: StageContext,
    config: SampleCompletionsConfig,
    prompts: Sequence[Sequence[int]],
    folder: Path,
    settings: Mapping[str, Any],
) -> list[Completion]:
    """Return completions by vLLM; raises the errors of `vllm_writers`."""
    positions = position_limit(shell(AutoModelForCausalLM, folder, dtype=compute_dtype(context.spec.profile)))
    check_lengths(config, max_positions=positions, name="model that vLLM is to load")
    longest = config.max_prompt_length + config.max_completion_length
    with vllm_writers(folder, context.spec.profile, longest=longest, seed=context.spec.seed) as (writer, spread, count):
        # One batch for each, so that vLLM begins a completion when another one ends.
        share = math.ceil(len(prompts) / count)
        model, tokenizer = writer
        found = generate_completions(model, tokenizer, prompts, batch_size=share, spread=spread, **settings)
    context.recorder.note(f"Completions are written by vLLM {vllm_version()}.")
    return found


def _batch_size(config: SampleCompletionsConfig) -> int:
    if config.batch_size is None:
        raise BadConfigError("sample_completions.batch_size is null; the run puts that of evaluate_policy there.")
    return config.batch_size


def _empty_counts(context: StageContext, written: Mapping[str, Sequence[Completion]]) -> tuple[Metric, ...]:
    """Number of completions without text; they are scored as they are."""
    metrics = []
    for name, completions in written.items():
        num_empty = sum(not completion.text.strip() for completion in completions)
        if num_empty:
            context.recorder.note(f"{num_empty} of {len(completions)} completions of the {name} are empty.")
        metrics.append(Metric(name=f"num_empty_{name}", value=num_empty, unit="completions", count=len(completions)))
    return tuple(metrics)
