"""Rollout engine: transformers' continuous batching, with paged keys and values; ended completions free their pages.

A prompt is one request with K completions: it is computed once, and its full pages are kept once. TRL's own use of
continuous batching has two faults. It casts the trained weights to bfloat16 for good. And after a failed request, the
later completions are assigned to the wrong prompts.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.utils import WorkloadHints

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.harness.context import StageContext
from containers.harness.errors import StageError
from containers.models.trial import trial
from containers.packing.logps import causal_of
from containers.rollouts.engines import Rollouts, generating_by, where_the_same
from containers.rollouts.prompts import equal_rows, prompts_of, with_completions
from containers.rollouts.trial import TrialRows
from containers.token_budgets import PAGE_TOKENS

# Maximum prompt tokens in one forward: without FlashAttention, attention holds a mask of these by all kept tokens.
_FORWARD_TOKENS = 1024
_WAIT_S = 1.0


@dataclass(frozen=True)
class Written:
    """The completions: tokens of each, and their log-probabilities (nats)."""

    tokens: list[list[int]]
    logprobs: list[list[float]]


def batching(policy: Any) -> AbstractContextManager[None]:
    """Replace the policy's `generate` by continuous batching while this context is open.

    It takes `input_ids` [B, L] and `attention_mask` [B, L], padded on the left, and returns [B, L + C] like `generate`,
    with pad tokens after the end of a completion. Rows of the same prompt are adjacent.

    Args:
        policy: a causal model that supports continuous batching, or adapters on one, which are used.
    """
    model = causal_of(policy)

    def generate(*, input_ids: Tensor, attention_mask: Tensor, generation_config: GenerationConfig, **_: Any) -> Tensor:
        runs = equal_rows(input_ids, attention_mask)
        siblings = _together(runs, attention_mask) if generation_config.do_sample else 1
        prompts = prompts_of(runs, input_ids, attention_mask, siblings=siblings)
        found = written(model, prompts, siblings=siblings, settings=generation_config)
        return with_completions(input_ids, found.tokens, pad_id=int(generation_config.pad_token_id))

    return generating_by(model, generate)


def start(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> Rollouts:
    """Start this engine, or transformers' generate if the two differ; see `start_rollouts`."""
    longest = config.max_prompt_length + config.max_completion_length
    return where_the_same(
        context,
        batching,
        "by transformers' continuous batching",
        reason=why_not_batched(model, prompts, max_length=longest),
        otherwise="by transformers' generate, without continuous batching",
    )


def why_not_batched(model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, max_length: int) -> str:
    """Return why this causal model cannot use continuous batching, as a clause; empty if it can.

    Completes the shortest and the longest prompt both ways, and compares the log-probabilities.

    Args:
        prompts: token ids of each prompt.
        max_length: maximum tokens of a prompt with its completion.
    """
    asked = TrialRows.of(model, prompts, max_length=max_length)
    found = Written([], [])
    with trial() as tried:
        found = written(model, asked.prompts, siblings=1, settings=asked.settings)
    if tried.failure:
        return f"{type(model).__name__} fails with it: {tried.failure}"
    return asked.why_others(found.tokens, found.logprobs)


def written(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, siblings: int, settings: GenerationConfig
) -> Written:
    """Generate `siblings` completions of each prompt, in the order of the prompts.

    All prompts are submitted before the first token is generated, so the same random state gives the same completions.

    Args:
        prompts: token ids of each, at least one.
        siblings: more than one only with sampling.
        settings: `max_new_tokens`, tokens that end a completion, and sampling.

    Raises:
        StageError: completions are missing or failed; says how many, and why.
        RuntimeError: a forward failed.
    """
    asked = deepcopy(settings)
    asked.num_return_sequences = siblings
    was_training = model.training
    manager = model.init_continuous_batching(
        generation_config=asked,
        continuous_batching_config=_pages(model, prompts, siblings=siblings, new_tokens=asked.max_new_tokens),
        workload_hints=WorkloadHints(
            max_prompt_length=max(map(len, prompts)),
            max_generated_length=asked.max_new_tokens,
            num_requests=len(prompts) * siblings,
        ),
    )
    results: dict[str, Any] = {}
    try:
        if model.device.type == "cuda":
            manager.warmup()
        names = manager.add_requests([list(prompt) for prompt in prompts], max_new_tokens=asked.max_new_tokens)
        manager.start()
        while len(results) < len(names) * siblings:
            result = manager.get_result(timeout=_WAIT_S)
            if result is not None and result.is_finished():
                results[result.request_id] = result
            elif result is None and not manager.is_running():
                break
    finally:
        fatal = manager.background_thread_status.fatal_error
        manager.stop(block=True, hard_stop=True)
        manager.destroy()
        model.train(was_training)
    if isinstance(fatal, MemoryError) and model.device.type == "cuda":
        raise torch.OutOfMemoryError(f"CUDA out of memory for the pages of continuous batching: {fatal}") from fatal
    if fatal is not None:
        raise fatal
    # transformers' names of the other requests that a request was split into.
    children = [f"__child#{number}" for number in range(siblings - 1)]
    answers = [results.get(f"{own}{child}") for own in names for child in (*children, "")]
    whole = [answer for answer in answers if answer is not None and not answer.error and answer.generated_tokens]
    if len(whole) < len(answers):
        raise StageError(_lost(answers, num_whole=len(whole)))
    return Written([answer.generated_tokens for answer in whole], [answer.logprobs for answer in whole])


def _together(runs: Sequence[range], attention_mask: Tensor) -> int:
    """Number of completions per request: the largest that divides each prompt's number of rows.

    It is 1 if a prompt has one token: transformers computes all but a prompt's last token before it splits the request,
    and cannot compute zero tokens.
    """
    return math.gcd(*map(len, runs)) if int(attention_mask.sum(dim=1).min()) > 1 else 1


def _lost(answers: Sequence[Any], *, num_whole: int) -> str:
    """Return the message for completions that are missing or failed."""
    reasons = ("it was never returned" if answer is None else answer.error for answer in answers)
    reason = next((reason for reason in reasons if reason), "it has no token")
    return (
        f"transformers' continuous batching lost {len(answers) - num_whole} of {len(answers)} completions ({reason}). "
        "Use train_policy.rollout_engine: shared_prompts or transformers instead."
    )


def _pages(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, siblings: int, new_tokens: int
) -> ContinuousBatchingConfig:
    """Configure as many pages as all completions need at their longest; transformers would take most free memory.

    Prefixes are kept once within these requests. Nothing is kept for the next ones: the weights change before them.
    """
    return ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=num_pages([len(prompt) for prompt in prompts], siblings=siblings, new_tokens=new_tokens),
        max_batch_tokens=max(_FORWARD_TOKENS, len(prompts) * siblings),
        safety_margin=0.0,
        # FlashAttention computes in half precision only.
        auto_switch_to_flash=model.dtype in (torch.float16, torch.bfloat16),
        return_logprobs=True,
        drop_unsupported_processors=False,
    )


def num_pages(lengths: Sequence[int], *, siblings: int, new_tokens: int) -> int:
    """Number of pages for prompts of these lengths, with a spare one per completion and per prompt.

    Example: one prompt of 300 tokens with 4 completions of 100: one full page for all, 4 × 1 for the rest, 5 spare.
    """
    whole = [length // PAGE_TOKENS for length in lengths]
    own = [math.ceil((length + new_tokens) / PAGE_TOKENS) - full for length, full in zip(lengths, whole, strict=True)]
    return sum(full + 1 + siblings * (rest + 1) for full, rest in zip(whole, own, strict=True))
