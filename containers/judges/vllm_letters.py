"""Probabilities of a judge's two letters by vLLM, which can divide a large model over several GPUs."""

import logging
import math
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from containers.contracts.configs.parts.judges import LanguageModelJudge
from containers.contracts.configs.parts.training import VLLM_FRACTION_ALONE
from containers.distributed.devices import compute_device, compute_dtype
from containers.formatting import one_line
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, StageError
from containers.harness.gpu_shares import ROLLOUT_GPUS_VARIABLE
from containers.rewards.base import Rewarding
from containers.rollouts.vllm_process import end_vllm
from containers.rollouts.vllm_server import give_back_memory, new_llm, token_bytes, vllm_version

logger = logging.getLogger(__name__)

# A letter that is not among so many likeliest tokens has no probability: less than a twentieth.
_LIKELIEST = 20
# Another tokenizer than the policy's may take so many times as many tokens for the same text.
_TIMES_AS_MANY_TOKENS = 2
# Tokens of the question beside its texts.
_QUESTION_TOKENS = 1024
_SEQUENCES = 64


class VllmLetters:
    """Gives the probability of each letter as the next token.

    Args:
        llm: a `vllm.LLM`.
        letters: ids of the tokens that are the first letter, and the second.
        longest: tokens of the longest question.
    """

    def __init__(self, llm: Any, letters: tuple[Sequence[int], Sequence[int]], *, longest: int) -> None:
        self._llm = llm
        self._letters = letters
        self.longest = longest

    def chances(self, questions: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
        """Return for each question the probability of each letter as the next token.

        Raises:
            StageError: vLLM is gone.
        """
        from vllm import SamplingParams

        settings = SamplingParams(max_tokens=1, temperature=0.0, logprobs=_LIKELIEST, detokenize=False)
        given = [{"prompt_token_ids": list(tokens)} for tokens in questions]
        try:
            found = self._llm.generate(given, settings, use_tqdm=False)
        except Exception as error:
            raise StageError(f"The judge's vLLM answered nothing: {error}.") from error
        return [self._of_letters(answer.outputs[0].logprobs[0]) for answer in found]

    def _of_letters(self, likeliest: dict[int, Any]) -> tuple[float, float]:
        first, second = (
            sum(math.exp(likeliest[token].logprob) for token in ids if token in likeliest) for ids in self._letters
        )
        return first, second

    def close(self) -> None:
        """End vLLM's processes."""
        end_vllm(self._llm)


def start_letters(
    context: StageContext,
    config: Rewarding,
    judge: LanguageModelJudge,
    folder: Path,
    *,
    letters: tuple[Sequence[int], Sequence[int]],
) -> VllmLetters:
    """Start vLLM with the judge's model, on all GPUs of the stage; takes about a minute.

    Raises:
        BadConfigError: vLLM is not installed, or refuses the model; says what to do.
        StageError: vLLM does not start.
    """
    instead = f"use evaluate_policy.judges.{judge.name}.engine: transformers instead"
    if find_spec("vllm") is None:
        raise BadConfigError(
            f"The engine of judge {judge.name} is vllm, which is not installed here. Build the stage image with it "
            f"(containers/images/build.sh --with vllm, docs/training.md), or {instead}."
        )
    model = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config()
    device, dtype = compute_device(context.spec.profile), compute_dtype(context.spec.profile)
    texts = config.max_prompt_length + 2 * config.max_completion_length + len(judge.criteria)
    wanted = _TIMES_AS_MANY_TOKENS * texts + _QUESTION_TOKENS
    longest = min(wanted, getattr(model, "max_position_embeddings", None) or wanted)
    give_back_memory()
    space = _SEQUENCES * longest * token_bytes(model, dtype)
    try:
        llm = new_llm(
            folder,
            dtype=dtype,
            max_length=longest,
            sequences=_SEQUENCES,
            on_gpu=device.type != "cpu",
            gpus=_all_gpus(),
            cache_bytes=space,
            logprobs_mode="raw_logprobs",
            max_logprobs=_LIKELIEST,
            tensor_parallel_size=judge.vllm_gpus,
            gpu_memory_utilization=VLLM_FRACTION_ALONE,
            seed=context.spec.seed,
        )
    except Exception as error:
        logger.exception("vLLM does not start.")
        # As of rollouts: ValueErrors come before a GPU is used.
        kind = BadConfigError if isinstance(error, ValueError) else StageError
        found = one_line(str(error), 300)
        text = f"vLLM does not start with the model of judge {judge.name}: {found}. {instead[0].upper()}{instead[1:]}."
        raise kind(text) from error
    context.recorder.note(f"Judge {judge.name} is computed by vLLM {vllm_version()}.")
    return VllmLetters(llm, letters, longest=longest - 1)


def _all_gpus() -> str:
    """Return the GPUs of the stage, as CUDA_VISIBLE_DEVICES."""
    return ",".join(filter(None, map(os.environ.get, ("CUDA_VISIBLE_DEVICES", ROLLOUT_GPUS_VARIABLE))))
