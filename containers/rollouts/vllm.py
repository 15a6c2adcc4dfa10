"""Completions by vLLM, in processes of its own, which load the start model once.

It is given the trained adapters before each batch, by name and number, as LoRA requests; the base it keeps. TRL merges
them into the base and takes them out again, and the base drifts by what is rounded. Where adapters are all that is
trained, nothing else has to cross.

Either each rank has one, on its own GPU, or the first rank has one on GPUs that no rank uses, and it writes for all.
"""

import logging
import math
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, distributed
from transformers import GenerationConfig, PreTrainedModel

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.distributed.ranks import is_first_rank, of_all_ranks, patient_group
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, StageError
from containers.packing.logps import causal_of
from containers.rollouts.engines import Rollouts
from containers.rollouts.prompts import equal_rows, prompts_of, with_completions
from containers.rollouts.trial import TrialRows
from containers.rollouts.vllm_server import ELSE, VllmPlace, load_vllm

logger = logging.getLogger(__name__)

ADAPTERS_FOLDER = "vllm_adapters"
# Of a token, on average (nats): what other kernels and half precision differ by is a tenth of that.
_MOST_APART = 0.3
_SHUTDOWN_S = 1.0


@dataclass(frozen=True)
class _Asked:
    """Token ids of a rank's prompts, completions of each, and a seed for each."""

    prompts: list[list[int]]
    siblings: int
    seeds: list[int]


# Tokens of a rank's completions, and their log-probabilities.
_Answers = tuple[list[list[int]], list[list[float]]]


@dataclass
class VllmEngine:
    """A vLLM that writes what a policy with its present adapters would.

    Attributes:
        llm: a `vllm.LLM` with the base model; None on a rank for which the first one's writes.
        folder: where adapters lie on their way to it; shared by the ranks.
        version: of vLLM.
        num_tokens: that the model has rows for.
        writes_for_all: whether the first rank's writes for all ranks.
        group: by which the ranks wait for it then.
    """

    llm: Any
    folder: Path
    version: str
    num_tokens: int
    writes_for_all: bool = False
    group: distributed.ProcessGroup | None = field(default=None, repr=False)
    _num_given: int = 0
    _request: Any = field(default=None, repr=False)

    @contextmanager
    def writing(self, policy: Any) -> Iterator[None]:
        """While this is open, the policy's `generate` is vLLM's, with the adapters as they are now.

        It takes `input_ids` [B, L] and `attention_mask` [B, L], padded on the left, and gives [B, L + C].

        Raises:
            StageError: what vLLM wrote is not what the policy would have.
        """
        causal = causal_of(policy)

        def generate(
            *, input_ids: Tensor, attention_mask: Tensor, generation_config: GenerationConfig, **_: Any
        ) -> Tensor:
            self._give(policy)
            runs = equal_rows(input_ids, attention_mask)
            siblings = math.gcd(*map(len, runs)) if generation_config.do_sample else 1
            prompts = prompts_of(runs, input_ids, attention_mask, siblings=siblings)
            tokens, logprobs = self.written(prompts, siblings=siblings, settings=generation_config)
            self._demand_of_policy(causal, prompts[0], tokens[0], logprobs[0])
            return with_completions(input_ids, tokens, pad_id=int(generation_config.pad_token_id))

        causal.generate = generate
        try:
            yield
        finally:
            del causal.generate

    def written(
        self, prompts: Sequence[Sequence[int]], *, siblings: int, settings: GenerationConfig
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Tokens of `siblings` completions of each prompt, in order, and their log-probabilities at temperature 1.

        Every prompt has a seed from torch's random state: what is drawn depends on neither load nor batch.
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
        """What vLLM wrote, or why not: where it writes for all ranks, they wait for one of the two.

        Nothing on a rank that has none.
        """
        if self.llm is None:
            return [], ""
        try:
            return self._answers(wanted, settings), ""
        except Exception as error:
            logger.exception("vLLM did not write.")
            return [], f"vLLM wrote nothing: {error}. {ELSE[0].upper()}{ELSE[1:]}."

    def _answers(self, wanted: Sequence[_Asked], settings: GenerationConfig) -> list[_Answers]:
        """What vLLM writes for each of those who asked."""
        from vllm import SamplingParams

        end_ids = settings.eos_token_id
        named = [end_ids] if isinstance(end_ids, int) else list(end_ids or ())
        drawn = {"temperature": settings.temperature, "top_p": settings.top_p} if settings.do_sample else {}
        asked = [
            SamplingParams(
                n=own.siblings,
                **{"temperature": 0.0, **drawn},
                seed=seed,
                max_tokens=settings.max_new_tokens,
                # vLLM refuses tokens that the model has no row for, and so can never write.
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

    def _give(self, policy: Any) -> None:
        """Hand over the adapters as they are; the first rank writes them for all."""
        if not isinstance(policy, PeftModel):
            self._request = None
            return
        from vllm.lora.request import LoRARequest

        number = self._num_given + 1
        path = self.folder / str(number)
        if is_first_rank():
            policy.save_pretrained(str(path), save_embedding_layers=False)
            shutil.rmtree(self.folder / str(number - 1), ignore_errors=True)
        if distributed.is_initialized():
            distributed.barrier()
        self._num_given = number
        self._request = LoRARequest(f"policy-{number}", number, str(path))

    @torch.no_grad()
    def _demand_of_policy(
        self, causal: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        """One completion is as likely under the policy as vLLM says, on average over its tokens."""
        was_training = causal.training
        causal.eval()
        ids = torch.tensor([[*prompt, *tokens]], device=causal.device)
        logits = causal(input_ids=ids, use_cache=False, logits_to_keep=len(tokens) + 1).logits[0, :-1].float()
        causal.train(was_training)
        own = torch.log_softmax(logits, dim=-1).gather(1, ids[0, -len(tokens) :, None])[:, 0]
        apart = float((own.cpu() - torch.tensor(logprobs)).abs().mean())
        if not apart <= _MOST_APART:
            raise StageError(
                f"vLLM's log-probabilities are {apart:.2g} nats a token apart from the policy's, more than "
                f"{_MOST_APART}: it does not write what the policy would. {ELSE[0].upper()}{ELSE[1:]}."
            )

    def close(self) -> None:
        """End vLLM's process and take its adapters away, without hearing of a stop meanwhile.

        Where all ranks fail, those without a vLLM are gone at once, and torchrun tells this one to stop.
        """
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            if is_first_rank():
                shutil.rmtree(self.folder, ignore_errors=True)
            if self.llm is not None:
                # It hears no SIGTERM, and is killed after this time.
                self.llm.llm_engine.engine_core.shutdown(timeout=_SHUTDOWN_S)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)


def _in_order(found: Sequence[Any], asked: _Asked) -> _Answers:
    """The completions of vLLM's outputs, sibling by sibling."""
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
    """This engine, noted; see `start_rollouts`."""
    engine = start_vllm(context, config, model, prompts)
    where = f", on {config.vllm_gpus} GPU(s) of its own" if config.vllm_gpus else ""
    context.recorder.note(
        f"Completions are generated by vLLM {engine.version}{where}, which is given the adapters anew."
    )
    return Rollouts(engine.writing, engine.close)


def start_vllm(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> VllmEngine:
    """vLLM with the start model, tried on the shortest prompt and the longest; about a minute.

    Args:
        model: the start model, whose greedy completions are compared.
        prompts: token ids of the prompts that the policy is trained on.

    Raises:
        BadConfigError: vLLM is not installed, refuses the model, or writes something else; says what to do.
        StageError: it does not start.
    """
    if config.lora is None:
        raise BadConfigError(f"train_policy.rollout_engine: vllm needs train_policy.lora; {ELSE}.")
    if find_spec("vllm") is None:
        raise BadConfigError(
            "train_policy.rollout_engine is vllm, which is not installed here. Build the stage image with it "
            f"(containers/images/build.sh --with vllm, docs/training.md), or not: {ELSE}."
        )
    folder = context.work / ADAPTERS_FOLDER
    if is_first_rank():
        shutil.rmtree(folder, ignore_errors=True)
    batch, longest = context.spec.batch, config.max_prompt_length + config.max_completion_length
    of_a_rank = batch.per_device_batch_size * batch.gradient_accumulation_steps
    place = VllmPlace(
        model=model,
        lora_rank=config.lora.r,
        max_length=longest,
        sequences=of_a_rank * (batch.num_processes if config.vllm_gpus else 1),
        num_gpus=config.vllm_gpus,
        memory_fraction=config.vllm_fraction,
        seed=context.spec.seed,
    )
    group = patient_group() if config.vllm_gpus else None
    llm, version = _loaded(str(context.input_path("start_model")), place, group)
    engine = VllmEngine(
        llm,
        folder,
        version,
        num_tokens=model.get_input_embeddings().num_embeddings,
        writes_for_all=config.vllm_gpus > 0,
        group=group,
    )
    try:
        reason = _why_others(engine, model, prompts, max_length=longest)
    except BaseException:
        engine.close()
        raise
    if reason:
        engine.close()
        raise BadConfigError(f"vLLM does not write what this model would: {reason}. {ELSE[0].upper()}{ELSE[1:]}.")
    return engine


def _loaded(start_model: str, place: VllmPlace, group: distributed.ProcessGroup | None) -> tuple[Any, str]:
    """The rank's vLLM, None where the first rank has one for all; and its version. Ranks fail together."""
    llm, version = None, ""
    failure: StageError | None = None
    if not place.num_gpus or is_first_rank():
        try:
            llm, version = load_vllm(start_model, place)
        except BadConfigError as error:
            failure = error
        except Exception as error:
            logger.exception("vLLM does not start.")
            # What vLLM checks before it takes a GPU are ValueErrors; the log says more of all others.
            kind = BadConfigError if isinstance(error, ValueError) else StageError
            failure = kind(f"vLLM does not start with this model: {error}. {ELSE[0].upper()}{ELSE[1:]}.")
    if place.num_gpus:
        version, failure = of_all_ranks((version, failure), group=group)[0]
    if failure is not None:
        raise failure
    return llm, version


def _why_others(
    engine: VllmEngine, model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, max_length: int
) -> str:
    """Why vLLM's greedy completions are not the model's, a clause; empty where they are."""
    asked = TrialRows.of(model, prompts, max_length=max_length)
    tokens, logprobs = engine.written(asked.prompts, siblings=1, settings=asked.settings)
    return asked.why_others(tokens, logprobs)
