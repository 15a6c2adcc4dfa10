"""Completions by transformers' continuous batching: keys and values lie in pages, and who has ended makes room.

A prompt is one request with K answers: it is computed once, and its full pages are kept once. TRL's own use of it is
not taken: that casts the trained weights to bfloat16 for good, and where a request fails, the completions behind it
move up to prompts that are not theirs.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from containers.rollouts.engines import Rollouts, where_the_same
from containers.rollouts.prompts import equal_rows, prompts_of, with_completions
from containers.rollouts.trial import TrialRows
from containers.token_budgets import PAGE_TOKENS

# Of prompts, in one forward: what attends without FlashAttention holds a mask of these by all tokens that are kept.
_FORWARD_TOKENS = 1024
_WAIT_S = 1.0


@dataclass(frozen=True)
class Written:
    """What was written after the prompts: tokens of each, and their log-probabilities (nats)."""

    tokens: list[list[int]]
    logprobs: list[list[float]]


@contextmanager
def continuous_batching(model: PreTrainedModel) -> Iterator[None]:
    """While this is open, `model.generate` is continuous batching.

    It takes `input_ids` [B, L] and `attention_mask` [B, L], padded on the left, and gives [B, L + C] as before, filled
    up with the pad token behind the one that ended a completion. Rows that are one prompt stand one behind the other.

    Args:
        model: a causal model that transformers can do this with; adapters in it are used.
    """

    def generate(*, input_ids: Tensor, attention_mask: Tensor, generation_config: GenerationConfig, **_: Any) -> Tensor:
        runs = equal_rows(input_ids, attention_mask)
        siblings = _together(runs, attention_mask) if generation_config.do_sample else 1
        prompts = prompts_of(runs, input_ids, attention_mask, siblings=siblings)
        found = written(model, prompts, siblings=siblings, settings=generation_config)
        return with_completions(input_ids, found.tokens, pad_id=int(generation_config.pad_token_id))

    model.generate = generate
    try:
        yield
    finally:
        del model.generate


@contextmanager
def batching(policy: Any) -> Iterator[None]:
    """Completions by transformers' continuous batching; the policy may be adapters on a causal model."""
    with continuous_batching(causal_of(policy)):
        yield


def start(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> Rollouts:
    """This engine, or transformers' generate where that is not the same; see `start_rollouts`."""
    longest = config.max_prompt_length + config.max_completion_length
    return where_the_same(
        context,
        batching,
        "by transformers' continuous batching",
        reason=why_not_batched(model, prompts, max_length=longest),
        otherwise="by transformers' generate, without continuous batching",
    )


def why_not_batched(model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, max_length: int) -> str:
    """Why this causal model cannot be written with by continuous batching, a clause; empty where it can.

    The shortest and the longest prompt are completed both ways, and the log-probabilities compared.

    Args:
        prompts: token ids of each prompt.
        max_length: tokens of a prompt with its completion, at most.
    """
    asked = TrialRows.of(model, prompts, max_length=max_length)
    found = Written([], [])
    with trial() as tried:
        found = written(model, asked.prompts, siblings=1, settings=asked.settings)
    if tried.failure:
        return f"{type(model).__name__} fails in it: {tried.failure}"
    return asked.why_others(found.tokens, found.logprobs)


def written(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, siblings: int, settings: GenerationConfig
) -> Written:
    """`siblings` completions of each prompt, in the order of the prompts.

    All prompts are asked before the first token is written, so the same random state gives the same completions.

    Args:
        prompts: token ids of each, at least one.
        siblings: more than one only where it is drawn.
        settings: `max_new_tokens`, tokens that end a completion, and how it is drawn.

    Raises:
        StageError: a completion is missing or has failed; says which, and why.
        RuntimeError: what a forward raised.
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
    answers = [results.get(name) for own in names for name in (*_children(own, siblings), own)]
    whole = [answer for answer in answers if answer is not None and not answer.error and answer.generated_tokens]
    if len(whole) < len(answers):
        raise StageError(_lost(answers, num_whole=len(whole)))
    return Written([answer.generated_tokens for answer in whole], [answer.logprobs for answer in whole])


def _together(runs: Sequence[range], attention_mask: Tensor) -> int:
    """Completions of a prompt that are one request: as many as every prompt has here.

    transformers computes all but a prompt's last token before it splits the request, and cannot compute nothing.
    """
    return math.gcd(*map(len, runs)) if int(attention_mask.sum(dim=1).min()) > 1 else 1


def _children(request: str, siblings: int) -> list[str]:
    """What transformers calls the others that a request was split into."""
    return [f"{request}__child#{number}" for number in range(siblings - 1)]


def _lost(answers: Sequence[Any], *, num_whole: int) -> str:
    """What is said where completions are missing or have failed."""
    reasons = ("it never came back" if answer is None else answer.error for answer in answers)
    reason = next((reason for reason in reasons if reason), "it has no token")
    return (
        f"transformers' continuous batching lost {len(answers) - num_whole} of {len(answers)} completions ({reason}). "
        "train_policy.rollout_engine: shared_prompts or transformers does without it."
    )


def _pages(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, siblings: int, new_tokens: int
) -> ContinuousBatchingConfig:
    """As many pages as all completions need at their longest; transformers would take most of the memory that is free.

    Prefixes are kept once within these requests, and nothing is kept for the next ones: their weights are others.
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
    """Pages for prompts of these lengths, with one to spare for each completion and each prompt.

    Example: one prompt of 300 tokens with 4 completions of 100: a full page for all, 4 × 1 for the rest, 5 to spare.
    """
    whole = [length // PAGE_TOKENS for length in lengths]
    own = [math.ceil((length + new_tokens) / PAGE_TOKENS) - full for length, full in zip(lengths, whole, strict=True)]
    return sum(full + 1 + siblings * (rest + 1) for full, rest in zip(whole, own, strict=True))
