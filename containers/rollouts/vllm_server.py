"""Start the stage's vLLM: one process, or one per GPU, that is no rank and loads the model itself."""

import gc
import logging
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from containers.contracts.configs.parts.training import VLLM_FRACTION_ALONE, VLLM_LORA_RANKS, VLLM_SEQUENCES
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.hardware import GIB, GpuProfile
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.ranks import is_first_rank, of_all_ranks
from containers.distributed.spread import Spread, teams_of_gpus
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, StageError
from containers.models.loading import load_tokenizer
from containers.rollouts.vllm_process import ELSE, apart_from_ranks, end_vllm, vllm_gpus, watched

logger = logging.getLogger(__name__)

# First number of the compute capability of B200 and B300.
_BLACKWELL = 10
# Completions at the same time without a GPU, where a room is reserved for each.
_SEQUENCES_ON_CPU = 16


def load_vllm(context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel) -> tuple[Any, str]:
    """Start a `vllm.LLM` with the start model and room for adapters; return it and vLLM's version.

    Args:
        model: the start model as this rank has it; gives device and shape.

    Raises:
        BadConfigError: the adapters have a rank that vLLM does not support.
        Exception: vLLM cannot load the model.
    """
    give_back_memory()
    dtype = compute_dtype(context.spec.profile)
    adapters = {} if config.lora is None else {"max_loras": 1, "max_lora_rank": _lora_room(config.lora.r)}
    batch, max_length = context.spec.batch, config.max_prompt_length + config.max_completion_length
    of_a_rank = batch.per_device_batch_size * batch.gradient_accumulation_steps
    sequences = of_a_rank * (batch.num_processes if config.vllm_gpus else 1)
    space = sequences * max_length * token_bytes(model.config.get_text_config(), dtype)
    gpus = vllm_gpus(model.device, config.vllm_gpus, dict(os.environ)) if model.device.type == "cuda" else ""
    llm = new_llm(
        context.input_path("start_model"),
        dtype=dtype,
        max_length=max_length,
        sequences=sequences,
        on_gpu=model.device.type == "cuda",
        gpus=gpus,
        cache_bytes=space,
        gpu_memory_utilization=config.vllm_fraction,
        tensor_parallel_size=config.vllm_gpus or 1,
        enable_lora=bool(adapters),
        **adapters,
        enable_sleep_mode=sleeps(config, model.device),
        seed=context.spec.seed,
    )
    return llm, vllm_version()


def new_llm(
    folder: Path,
    *,
    dtype: torch.dtype,
    max_length: int,
    sequences: int,
    on_gpu: bool,
    gpus: str,
    cache_bytes: int,
    **settings: Any,
) -> Any:
    """Start a `vllm.LLM` whose processes end with this one.

    Args:
        max_length: tokens of a prompt with its completion.
        sequences: maximum at the same time.
        gpus: those that it sees, as CUDA_VISIBLE_DEVICES; empty: those of this process.
        cache_bytes: of a vLLM on a processor.
        **settings: further arguments of `vllm.LLM`.

    Raises:
        Exception: vLLM cannot load the model.
    """
    with apart_from_ranks(gpus, cache_gib=max(1, math.ceil(cache_bytes / GIB))):
        import vllm

        given: dict[str, Any] = {
            # At the temperature of the samples.
            "logprobs_mode": "processed_logprobs",
            # Eager on a CPU: compiling takes minutes, and there are no CUDA graphs to capture.
            "enforce_eager": not on_gpu,
            # Ignores generation_config.json: sampling is from the whole distribution.
            "generation_config": "vllm",
            "skip_tokenizer_init": True,
            "disable_log_stats": True,
            **_attention(on_gpu=on_gpu),
            **settings,
        }
        llm = vllm.LLM(
            model=str(folder),
            trust_remote_code=False,
            dtype=str(dtype).removeprefix("torch."),
            max_model_len=max_length,
            max_num_seqs=sequences,
            **given,
        )
    return watched(llm)


def _attention(*, on_gpu: bool) -> dict[str, str]:
    """Settings of the attention: on Blackwell vLLM prefers FlashInfer's, which is compiled with nvcc at the start."""
    if on_gpu and torch.cuda.get_device_capability()[0] == _BLACKWELL and shutil.which("nvcc") is None:
        return {"attention_backend": "FLASH_ATTN"}
    return {}


def vllm_version() -> str:
    """The version of the vLLM that is installed."""
    import vllm

    return str(vllm.__version__)


def give_back_memory() -> None:
    """Give back what torch keeps of models that are gone: vLLM demands its share of the memory free at its start."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class VllmModel:
    """A saved language model in a vLLM of its own, which writes completions for `containers.rollouts.generate`.

    Args:
        folder: of the model.
        longest: tokens of a prompt with its completion.
        seed: of vLLM; each completion has its own.
        num_gpus: that hold the model together.
        gpus: those, as CUDA_VISIBLE_DEVICES; empty: those of this process.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: torch.dtype,
        device: str,
        longest: int,
        seed: int,
        num_gpus: int = 1,
        gpus: str = "",
    ) -> None:
        give_back_memory()
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        self.config = config
        self.generation_config = GenerationConfig.from_model_config(config)
        if (folder / "generation_config.json").is_file():
            self.generation_config = GenerationConfig.from_pretrained(folder, trust_remote_code=False)
        self._num_tokens = int(config.get_text_config().vocab_size)
        on_gpu = device.startswith("cuda")
        self._llm = new_llm(
            folder,
            dtype=dtype,
            max_length=longest,
            sequences=VLLM_SEQUENCES if on_gpu else _SEQUENCES_ON_CPU,
            on_gpu=on_gpu,
            gpus=gpus if on_gpu else "",
            cache_bytes=_SEQUENCES_ON_CPU * longest * token_bytes(config.get_text_config(), dtype),
            gpu_memory_utilization=VLLM_FRACTION_ALONE,
            tensor_parallel_size=num_gpus,
            seed=seed,
        )

    def tails(self, batches: Sequence[Any], *, end_ids: Sequence[int]) -> list[list[list[int]]]:
        """Return the tokens of a completion of each prompt of each batch (`generate.Asked`); all at once."""
        from vllm import SamplingParams

        settings = [
            SamplingParams(
                temperature=batch.temperature,
                top_p=1.0,
                seed=random.Random(f"{batch.base} {place}").getrandbits(62),  # noqa: S311  (completions, not a secret)
                max_tokens=batch.max_new_tokens,
                stop_token_ids=[token for token in end_ids if 0 <= token < self._num_tokens],
                detokenize=False,
            )
            for batch in batches
            for place in batch.places
        ]
        given = [{"prompt_token_ids": list(prompt)} for batch in batches for prompt in batch.prompts]
        found = iter(self._llm.generate(given, settings, use_tqdm=False))
        return [[list(next(found).outputs[0].token_ids) for _ in batch.prompts] for batch in batches]

    def close(self) -> None:
        """End vLLM's processes."""
        end_vllm(self._llm)


def load_vllm_writer(
    folder: Path, dtype: torch.dtype, device: torch.device | str, **settings: Any
) -> tuple[VllmModel, Any]:
    """Load a saved language model in a vLLM, with its tokenizer, as a program on further GPUs has it.

    Args:
        **settings: of `VllmModel`.
    """
    return VllmModel(folder, dtype=dtype, device=str(device), **settings), load_tokenizer(folder)


@contextmanager
def vllm_writers(
    folder: Path, profile: GpuProfile, *, longest: int, seed: int
) -> Iterator[tuple[Any, Spread[Any] | None, int]]:
    """Have a vLLM on each GPU of an evaluation, or on those that hold the model together; gone when this ends.

    Args:
        longest: tokens of a prompt with its completion.

    Returns:
        The writer of this process, programs with the others, and how many there are in all.

    Raises:
        BadConfigError: vLLM is not installed, or cannot load the model.
    """
    otherwise = "use evaluate_policy.rollout_engine: transformers instead"
    if find_spec("vllm") is None:
        raise BadConfigError(
            "evaluate_policy.rollout_engine is vllm, which is not installed here. Build the stage image with it "
            f"(containers/images/build.sh --with vllm, docs/training.md), or {otherwise}."
        )
    own, *further = teams_of_gpus(profile)
    arguments: dict[str, Any] = {
        "folder": folder,
        "dtype": compute_dtype(profile),
        "longest": longest,
        "seed": seed,
        "num_gpus": profile.tensor_parallel,
    }
    writers: list[tuple[VllmModel, Any]] = []

    def load() -> None:
        try:
            writers.append(load_vllm_writer(device=compute_device(profile), gpus=own, **arguments))
        except ValueError as error:  # it checks the model before it uses a GPU
            raise BadConfigError(f"vLLM cannot load the model in {folder}: {error}. Or {otherwise}.") from error

    spread = None
    try:
        if further:
            spread = Spread(load_vllm_writer, arguments, gpus=further, meanwhile=load)
        else:
            load()
        yield writers[0], spread, 1 + len(further)
    finally:
        if spread is not None:
            spread.close()
        for model, _ in writers:
            model.close()


def sleeps(config: TrainPolicyConfig, device: torch.device) -> bool:
    """Whether vLLM gives its memory back between batches: one that shares a GPU with a rank."""
    return config.vllm_sleeps and device.type == "cuda" and not config.vllm_gpus


def _lora_room(rank: int) -> int:
    """Return the smallest of vLLM's LoRA ranks that holds these adapters."""
    room = next((size for size in VLLM_LORA_RANKS if size >= rank), None)
    if room is None:
        raise BadConfigError(f"vLLM takes adapters of rank {VLLM_LORA_RANKS[-1]} at most, not {rank}; {ELSE}.")
    return room


def token_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values, from the widths in the config of a language model."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * dtype.itemsize)


def load_together(
    load: Callable[[], tuple[Any, str]], config: TrainPolicyConfig, group: distributed.ProcessGroup | None
) -> tuple[Any, str]:
    """Return the rank's vLLM (None if it uses the first rank's) and its version. Ranks fail together."""
    llm, found = None, ""
    failure: StageError | None = None
    if not config.vllm_gpus or is_first_rank():
        try:
            llm, found = load()
        except BadConfigError as error:
            failure = error
        except Exception as error:
            logger.exception("vLLM does not start.")
            # vLLM raises ValueErrors for what it checks before it uses a GPU; the log says more about other errors.
            kind = BadConfigError if isinstance(error, ValueError) else StageError
            failure = kind(f"vLLM does not start with this model: {error}. {ELSE[0].upper()}{ELSE[1:]}.")
    if config.vllm_gpus:
        found, failure = of_all_ranks((found, failure), group=group)[0]
    if failure is not None:
        raise failure
    return llm, found
