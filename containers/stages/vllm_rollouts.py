"""Completions by vLLM, in a process of its own on the rank's device, which loads the start model once.

It is given the trained adapters before each batch, by name and number, as LoRA requests; the base it keeps. TRL merges
them into the base and takes them out again, and the base drifts by what is rounded. Where adapters are all that is
trained, nothing else has to cross.
"""

import math
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, distributed
from transformers import GenerationConfig, PreTrainedModel

from containers.contracts.stage_configs import LoraSettings, TrainPolicyConfig
from containers.contracts.training_settings import VLLM_LORA_RANKS
from containers.stages.batched_generation import prompts_of, with_completions
from containers.stages.context import StageContext
from containers.stages.errors import BadConfigError, StageError
from containers.stages.generation_trial import AskedRows
from containers.stages.group_generation import equal_rows
from containers.stages.packed_logps import causal_of
from containers.stages.ranks import is_first_rank

ADAPTERS_FOLDER = "vllm_adapters"
ELSE = "train_policy.rollout_engine: shared_prompts does without it"
# What torchrun tells a rank; a process that vLLM starts would take itself for that rank.
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
_VARIABLES = {
    "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# Of a token, on average (nats): what other kernels and half precision differ by is a tenth of that.
_MOST_APART = 0.3
_SHUTDOWN_S = 1.0
_GIB = 1024**3


@dataclass
class VllmEngine:
    """A vLLM that writes what a policy with its present adapters would.

    Attributes:
        llm: a `vllm.LLM` with the base model.
        folder: where adapters lie on their way to it; shared by the ranks.
        version: of vLLM.
        num_tokens: that the model has rows for.
    """

    llm: Any
    folder: Path
    version: str
    num_tokens: int
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
        from vllm import SamplingParams

        end_ids = settings.eos_token_id
        named = [end_ids] if isinstance(end_ids, int) else list(end_ids or ())
        drawn = {"temperature": settings.temperature, "top_p": settings.top_p} if settings.do_sample else {}
        seeds = torch.randint(0, 2**62, (len(prompts),)).tolist()
        asked = [
            SamplingParams(
                n=siblings,
                **{"temperature": 0.0, **drawn},
                seed=seed,
                max_tokens=settings.max_new_tokens,
                # vLLM refuses tokens that the model has no row for, and so can never write.
                stop_token_ids=[token for token in named if 0 <= token < self.num_tokens],
                logprobs=0,
                detokenize=False,
            )
            for seed in seeds
        ]
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        found = self.llm.generate(given, asked, lora_request=self._request, use_tqdm=False)
        answers = [answer for own in found for answer in sorted(own.outputs, key=lambda answer: answer.index)]
        if len(answers) != len(prompts) * siblings or not all(answer.token_ids for answer in answers):
            raise StageError(f"vLLM gave {len(answers)} of {len(prompts) * siblings} completions; {ELSE}.")
        tokens = [list(answer.token_ids) for answer in answers]
        logprobs = [
            [at[token].logprob for token, at in zip(answer.token_ids, answer.logprobs, strict=True)]
            for answer in answers
        ]
        return tokens, logprobs

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
        """End vLLM's process and take its adapters away."""
        # It hears no SIGTERM, and is killed after this time.
        self.llm.llm_engine.engine_core.shutdown(timeout=_SHUTDOWN_S)
        if is_first_rank():
            shutil.rmtree(self.folder, ignore_errors=True)


def start_vllm(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> VllmEngine:
    """vLLM with the start model, tried on the shortest prompt and the longest; about a minute.

    Args:
        model: the start model, whose greedy completions are compared.
        prompts: token ids of the prompts that the policy is trained on.

    Raises:
        BadConfigError: vLLM is not installed, does not start, or writes something else; says what to do.
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
    longest = config.max_prompt_length + config.max_completion_length
    batch = context.spec.batch
    sequences = batch.per_device_batch_size * batch.gradient_accumulation_steps
    space = sequences * longest * _token_bytes(model)
    try:
        with _apart_from_ranks(model.device, cache_gib=max(1, math.ceil(space / _GIB))):
            llm, version = _loaded(
                str(context.input_path("start_model")),
                model=model,
                lora=config.lora,
                max_length=longest,
                sequences=sequences,
                memory_fraction=config.vllm_memory_fraction,
                seed=context.spec.seed,
            )
    except Exception as error:
        raise BadConfigError(f"vLLM does not start with this model: {error}. {ELSE[0].upper()}{ELSE[1:]}.") from error
    engine = VllmEngine(llm, folder, version, num_tokens=model.get_input_embeddings().num_embeddings)
    if reason := _why_others(engine, model, prompts, max_length=longest):
        engine.close()
        raise BadConfigError(f"vLLM does not write what this model would: {reason}. {ELSE[0].upper()}{ELSE[1:]}.")
    return engine


def _loaded(
    folder: str,
    *,
    model: PreTrainedModel,
    lora: LoraSettings,
    max_length: int,
    sequences: int,
    memory_fraction: float,
    seed: int,
) -> tuple[Any, str]:
    """A `vllm.LLM` that takes adapters of this rank, and vLLM's version."""
    import vllm

    llm = vllm.LLM(
        model=folder,
        dtype=str(model.dtype).removeprefix("torch."),
        max_model_len=max_length,
        max_num_seqs=sequences,
        enable_lora=True,
        max_loras=1,
        max_lora_rank=lora_room(lora.r),
        gpu_memory_utilization=memory_fraction,
        # Nothing of generation_config.json: what is drawn is the whole distribution.
        generation_config="vllm",
        skip_tokenizer_init=True,
        # Short: compiling costs minutes, and a CPU has nothing to capture.
        enforce_eager=model.device.type == "cpu",
        disable_log_stats=True,
        seed=seed,
    )
    return llm, str(vllm.__version__)


def lora_room(rank: int) -> int:
    """The smallest rank that vLLM keeps room for and that these adapters fit in.

    Raises:
        BadConfigError: there is none.
    """
    room = next((size for size in VLLM_LORA_RANKS if size >= rank), None)
    if room is None:
        raise BadConfigError(f"vLLM takes adapters of rank {VLLM_LORA_RANKS[-1]} at most, not {rank}; {ELSE}.")
    return room


def _why_others(
    engine: VllmEngine, model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, max_length: int
) -> str:
    """Why vLLM's greedy completions are not the model's, a clause; empty where they are."""
    asked = AskedRows.of(model, prompts, max_length=max_length)
    tokens, logprobs = engine.written(asked.prompts, siblings=1, settings=asked.settings)
    return asked.why_others(tokens, logprobs)


def _token_bytes(model: PreTrainedModel) -> int:
    """Bytes of one token's keys and values, by the widths of the model's own config."""
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * model.dtype.itemsize)


@contextmanager
def _apart_from_ranks(device: torch.device, *, cache_gib: int) -> Iterator[None]:
    """While this is open, what is started sees one GPU, this rank's, and does not take itself for a rank.

    It hears no SIGTERM either: that goes to all processes of a stage, and the stage finishes its step and saves first.
    """
    before = dict(os.environ)
    # Started by the first process that is spawned, it would take the signal off the mask.
    resource_tracker.ensure_running()
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    for name in before:
        if name.startswith(_RANK_VARIABLES):
            del os.environ[name]
    os.environ.update({**_VARIABLES, "VLLM_CPU_KVCACHE_SPACE": str(cache_gib)})
    os.environ.setdefault("VLLM_CACHE_ROOT", str(Path(os.environ.get("XDG_CACHE_HOME", "/tmp")) / "vllm"))  # noqa: S108
    if device.type == "cuda":
        visible = [name for name in before.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        index = device.index or 0
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[index] if visible else str(index)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        os.environ.clear()
        os.environ.update(before)
