"""Rollout engine: vLLM in its own processes, which load the start model once.

Before each batch, vLLM gets the trained adapters by name and number, as LoRA requests; it keeps the base model. TRL
merges the adapters into the base and unmerges them, and rounding makes the base drift. Where every weight is trained,
it loads them all again, through files in the work folder.

A vLLM that shares its GPU with a rank sleeps between batches, so that training has the memory.

Either each rank has a vLLM on its own GPU, or the first rank has one, on GPUs that no rank uses, and it generates for
all ranks.
"""

import logging
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, distributed
from transformers import GenerationConfig, PreTrainedModel

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.distributed.devices import compute_dtype
from containers.distributed.ranks import is_first_rank, of_all_ranks, patient_group
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, StageError
from containers.models.weights import write_weights
from containers.packing.logps import causal_of
from containers.rollouts.engines import Rollouts, generating_by
from containers.rollouts.prompts import equal_rows, prompts_of, with_completions
from containers.rollouts.trial import TrialRows
from containers.rollouts.vllm_process import ELSE, end_vllm, sigterm_blocked
from containers.rollouts.vllm_server import load_together, load_vllm, sleeps
from containers.rollouts.vllm_trial import TRIAL_TOKENS, replays, try_given

logger = logging.getLogger(__name__)

ADAPTERS_FOLDER = "vllm_adapters"


@dataclass(frozen=True)
class _Asked:
    """A rank's request: token ids of its prompts, number of completions per prompt, and a seed per prompt."""

    prompts: list[list[int]]
    siblings: int
    seeds: list[int]


# Tokens of a rank's completions, and their log-probabilities.
_Answers = tuple[list[list[int]], list[list[float]]]


@dataclass
class VllmEngine:
    """A vLLM that generates completions of a policy with its current adapters.

    Attributes:
        llm: a `vllm.LLM` with the base model; None on a rank that uses the first rank's vLLM.
        folder: through which vLLM gets the adapters; shared by the ranks.
        version: vLLM's version.
        dtype: of its weights.
        sleeps: whether it gives its memory back after each batch.
        num_tokens: number of tokens with a row in the model's embedding.
        newest: log-probabilities of the tokens that it wrote last, by row, at their temperature.
        writes_for_all: whether the first rank's vLLM generates for all ranks.
        group: process group in which the ranks then wait for it.
    """

    llm: Any
    folder: Path
    version: str
    num_tokens: int
    dtype: torch.dtype = torch.float32
    sleeps: bool = False
    newest: list[list[float]] = field(default_factory=list, repr=False)
    writes_for_all: bool = False
    group: distributed.ProcessGroup | None = field(default=None, repr=False)
    _num_given: int = 0
    _request: Any = field(default=None, repr=False)
    # A folder with weights that it has not loaded yet.
    _unread: Path | None = field(default=None, repr=False)
    _is_asleep: bool = False

    @contextmanager
    def writing(self, policy: Any) -> Iterator[None]:
        """Replace the policy's `generate` by vLLM with the current adapters, while this is open.

        It takes `input_ids` [B, L] and `attention_mask` [B, L], padded on the left, and returns [B, L + C].
        """
        causal = causal_of(policy)

        def generate(
            *, input_ids: Tensor, attention_mask: Tensor, generation_config: GenerationConfig, **_: Any
        ) -> Tensor:
            self.give(policy)
            runs = equal_rows(input_ids, attention_mask)
            siblings = math.gcd(*map(len, runs)) if generation_config.do_sample else 1
            prompts = prompts_of(runs, input_ids, attention_mask, siblings=siblings)
            tokens, self.newest = self.written(prompts, siblings=siblings, settings=generation_config)
            return with_completions(input_ids, tokens, pad_id=int(generation_config.pad_token_id))

        with generating_by(causal, generate):
            yield
        self.rest()

    def rest(self) -> None:
        """Give the memory of weights and cache back until the next request, if this vLLM does so."""
        if self.sleeps and self.llm is not None and not self._is_asleep:
            # Adapters change nothing of the base, which then waits in host memory; all weights come anew.
            self.llm.sleep(level=1 if self._request is not None else 2)
            self._is_asleep = True

    def _get_ready(self) -> None:
        """Take memory and new weights, before a request."""
        if self._is_asleep:
            torch.cuda.empty_cache()
            self.llm.wake_up(["weights"])
        if self._unread is not None:
            self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(self._unread)})
            # What it remembers of prompts is by the weights before.
            self.llm.reset_prefix_cache()
            self._unread = None
        if self._is_asleep:
            self.llm.wake_up(["kv_cache"])
            self._is_asleep = False

    def written(self, prompts: Sequence[Sequence[int]], *, siblings: int, settings: GenerationConfig) -> _Answers:
        """Return tokens of `siblings` completions of each prompt, in order, and log-probabilities as they were drawn.

        Every prompt has a seed from torch's random state: samples depend on neither load nor batch.
        """
        seeds = torch.randint(0, 2**62, (len(prompts),)).tolist()
        asked = _Asked([list(prompt) for prompt in prompts], siblings, seeds)
        if not self.writes_for_all:
            answers, failure = self._answers_or_failure([asked], settings)
        else:
            wanted = of_all_ranks(asked, group=self.group)
            answers, failure = of_all_ranks(self._answers_or_failure(wanted, settings), group=self.group)[0]
        if failure:
            raise StageError(failure)
        return answers[distributed.get_rank() if self.writes_for_all and distributed.is_initialized() else 0]

    def _answers_or_failure(self, wanted: Sequence[_Asked], settings: GenerationConfig) -> tuple[list[_Answers], str]:
        """Return the completions, or the text of the failure, since other ranks may wait for one of the two.

        Both are empty on a rank without a vLLM.
        """
        if self.llm is None:
            return [], ""
        try:
            return self._answers(wanted, settings), ""
        except Exception as error:
            logger.exception("vLLM generated nothing.")
            return [], f"vLLM wrote nothing: {error}. {ELSE[0].upper()}{ELSE[1:]}."

    def _answers(self, wanted: Sequence[_Asked], settings: GenerationConfig) -> list[_Answers]:
        """Return vLLM's completions for each request."""
        from vllm import SamplingParams

        self._get_ready()
        end_ids = settings.eos_token_id
        named = [end_ids] if isinstance(end_ids, int) else list(end_ids or ())
        drawn = {"temperature": settings.temperature, "top_p": settings.top_p} if settings.do_sample else {}
        asked = [
            SamplingParams(
                n=own.siblings,
                **{"temperature": 0.0, **drawn},
                seed=seed,
                max_tokens=settings.max_new_tokens,
                # vLLM refuses stop tokens without a row in the model; it can never write them.
                stop_token_ids=[token for token in named if 0 <= token < self.num_tokens],
                logprobs=0,
                detokenize=False,
            )
            for own in wanted
            for seed in own.seeds
        ]
        given = [{"prompt_token_ids": prompt} for own in wanted for prompt in own.prompts]
        found = iter(self.llm.generate(given, asked, lora_request=self._request, use_tqdm=False))
        return [_in_order([next(found) for _ in own.prompts], own) for own in wanted]

    def give(self, policy: Any) -> None:
        """Give the current adapters, or all weights, to vLLM; the first rank saves them for all."""
        number = self._num_given + 1
        path = self.folder / str(number)
        adapts = isinstance(policy, PeftModel)
        if is_first_rank():
            shutil.rmtree(self.folder / str(number - 1), ignore_errors=True)
        if not adapts:
            write_weights(policy, path, dtype=self.dtype, writes=is_first_rank())
        elif is_first_rank():
            policy.save_pretrained(str(path), save_embedding_layers=False)
        if distributed.is_initialized():
            distributed.barrier()
        self._num_given = number
        if not adapts:
            self._unread = path
            return
        from vllm.lora.request import LoRARequest

        self._request = LoRARequest(f"policy-{number}", number, str(path))

    def close(self) -> None:
        """End vLLM's process and delete its adapters, with SIGTERM blocked meanwhile.

        If all ranks fail, those without a vLLM end at once, and torchrun then sends SIGTERM to this one.
        """
        with sigterm_blocked():
            if is_first_rank():
                shutil.rmtree(self.folder, ignore_errors=True)
            if self.llm is not None:
                end_vllm(self.llm)


def _in_order(found: Sequence[Any], asked: _Asked) -> _Answers:
    """Return the completions of vLLM's outputs, sibling by sibling."""
    answers = [answer for own in found for answer in sorted(own.outputs, key=lambda answer: answer.index)]
    wanted = len(asked.prompts) * asked.siblings
    if len(answers) != wanted or not all(answer.token_ids for answer in answers):
        raise StageError(f"vLLM gave {len(answers)} of {wanted} completions; {ELSE}.")
    tokens = [list(answer.token_ids) for answer in answers]
    logprobs = [
        [at[token].logprob for token, at in zip(answer.token_ids, answer.logprobs, strict=True)] for answer in answers
    ]
    return tokens, logprobs


def start(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> Rollouts:
    """Start this engine and note it; see `start_rollouts`."""
    engine = start_vllm(context, config, model, prompts)
    where = f", on {config.vllm_gpus} GPU(s) of its own" if config.vllm_gpus else ""
    given = "all weights" if config.lora is None else "the adapters"
    again = replays(engine, [min(prompts, key=len)], _sampled(config))
    context.recorder.note(
        f"Completions are generated by vLLM {engine.version}{where}, which gets {given} before each batch"
        f"{' and sleeps meanwhile' if engine.sleeps else ''}. "
        + (
            "The same seeds draw the same completions again."
            if again
            else "The same seeds draw others again, so a resumed training is not the same bit for bit."
        )
    )
    room = config.max_prompt_length + config.max_completion_length

    def tried(policy: Any) -> float:
        found = try_given(engine, policy, prompts=list(prompts), room=room)
        engine.rest()
        return found

    return Rollouts(
        engine.writing,
        engine.close,
        sampling=lambda: engine.newest,
        trial=tried,
    )


def _sampled(config: TrainPolicyConfig) -> GenerationConfig:
    length = min(TRIAL_TOKENS, config.max_completion_length)
    return GenerationConfig(max_new_tokens=length, do_sample=True, temperature=config.temperature, top_p=1.0, top_k=0)


def start_vllm(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> VllmEngine:
    """Start vLLM with the start model, and try it on the shortest and the longest prompt; takes about a minute.

    Args:
        model: the start model, whose greedy completions are compared.
        prompts: token ids of the prompts that the policy is trained on.

    Raises:
        BadConfigError: vLLM is not installed, refuses the model, or generates other text; says what to do.
        StageError: vLLM does not start.
    """
    if find_spec("vllm") is None:
        raise BadConfigError(
            "train_policy.rollout_engine is vllm, which is not installed here. Build the stage image with it "
            f"(containers/images/build.sh --with vllm, docs/training.md), or {ELSE}."
        )
    folder = context.work / ADAPTERS_FOLDER
    if is_first_rank():
        shutil.rmtree(folder, ignore_errors=True)
    group = patient_group() if config.vllm_gpus else None
    llm, version = load_together(partial(load_vllm, context, config, model), config, group)
    engine = VllmEngine(
        llm,
        folder,
        version,
        num_tokens=model.get_input_embeddings().num_embeddings,
        dtype=compute_dtype(context.spec.profile),
        sleeps=sleeps(config, model.device),
        writes_for_all=config.vllm_gpus > 0,
        group=group,
    )
    try:
        longest = config.max_prompt_length + config.max_completion_length
        asked = TrialRows.of(model, prompts, max_length=longest)
        reason = asked.why_others(*engine.written(asked.prompts, siblings=1, settings=asked.settings))
    except BaseException:
        engine.close()
        raise
    if reason:
        engine.close()
        raise BadConfigError(f"vLLM generates other text than this model: {reason}. {ELSE[0].upper()}{ELSE[1:]}.")
    return engine
