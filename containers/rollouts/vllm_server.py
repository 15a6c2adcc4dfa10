"""Start the stage's vLLM: one process, or one per GPU, that is no rank and loads the model itself."""

import logging
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from transformers import PreTrainedModel

from containers.contracts.configs.parts.training import VLLM_LORA_RANKS
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.hardware import GIB
from containers.distributed.devices import compute_dtype
from containers.distributed.ranks import is_first_rank, of_all_ranks
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, StageError
from containers.harness.gpu_shares import ROLLOUT_GPUS_VARIABLE
from containers.rollouts.vllm_process import apart_from_ranks, watched

logger = logging.getLogger(__name__)

ELSE = "use train_policy.rollout_engine: shared_prompts instead"


def load_vllm(context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel) -> tuple[Any, str]:
    """Start a `vllm.LLM` with the start model and room for adapters; return it and vLLM's version.

    Args:
        model: the start model as this rank has it; gives device and shape.

    Raises:
        BadConfigError: the adapters have a rank that vLLM does not support.
        Exception: vLLM cannot load the model.
    """
    dtype = compute_dtype(context.spec.profile)
    adapters = {} if config.lora is None else {"max_loras": 1, "max_lora_rank": _lora_room(config.lora.r)}
    batch, max_length = context.spec.batch, config.max_prompt_length + config.max_completion_length
    of_a_rank = batch.per_device_batch_size * batch.gradient_accumulation_steps
    sequences = of_a_rank * (batch.num_processes if config.vllm_gpus else 1)
    space = sequences * max_length * token_bytes(model.config.get_text_config(), dtype)
    gpus = vllm_gpus(model.device, config.vllm_gpus, dict(os.environ)) if model.device.type == "cuda" else ""
    with apart_from_ranks(gpus, cache_gib=max(1, math.ceil(space / GIB))):
        import vllm

        llm = vllm.LLM(
            model=str(context.input_path("start_model")),
            trust_remote_code=False,
            dtype=str(dtype).removeprefix("torch."),
            max_model_len=max_length,
            max_num_seqs=sequences,
            tensor_parallel_size=config.vllm_gpus or 1,
            enable_lora=bool(adapters),
            **adapters,
            enable_sleep_mode=sleeps(config, model.device),
            gpu_memory_utilization=config.vllm_fraction,
            # Ignores generation_config.json: sampling is from the whole distribution.
            generation_config="vllm",
            # At the temperature of the samples.
            logprobs_mode="processed_logprobs",
            skip_tokenizer_init=True,
            # Eager on a CPU: compiling takes minutes, and there are no CUDA graphs to capture.
            enforce_eager=model.device.type == "cpu",
            disable_log_stats=True,
            seed=context.spec.seed,
        )
    return watched(llm), str(vllm.__version__)


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


def vllm_gpus(device: torch.device, num_gpus: int, environment: dict[str, str]) -> str:
    """Return the GPUs for vLLM, as CUDA_VISIBLE_DEVICES: those without a rank, or this rank's.

    Raises:
        BadConfigError: the profile has another number of GPUs without a rank.
    """
    if num_gpus:
        left = [name for name in environment.get(ROLLOUT_GPUS_VARIABLE, "").split(",") if name]
        if len(left) != num_gpus:
            raise BadConfigError(
                f"train_policy.vllm_gpus is {num_gpus}, and the profile of this stage has {len(left)} GPUs without a "
                f"rank (num_rollout_gpus). `rlhf run` sets both; or {ELSE}."
            )
        return ",".join(left)
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    index = device.index or 0
    return visible[index] if visible else str(index)


def load_together(
    load: Callable[[], tuple[Any, str]], config: TrainPolicyConfig, group: distributed.ProcessGroup | None
) -> tuple[Any, str]:
    """Return the rank's vLLM (None if it uses the first rank's) and its version. Ranks fail together."""
    llm, version = None, ""
    failure: StageError | None = None
    if not config.vllm_gpus or is_first_rank():
        try:
            llm, version = load()
        except BadConfigError as error:
            failure = error
        except Exception as error:
            logger.exception("vLLM does not start.")
            # vLLM raises ValueErrors for what it checks before it uses a GPU; the log says more about other errors.
            kind = BadConfigError if isinstance(error, ValueError) else StageError
            failure = kind(f"vLLM does not start with this model: {error}. {ELSE[0].upper()}{ELSE[1:]}.")
    if config.vllm_gpus:
        version, failure = of_all_ranks((version, failure), group=group)[0]
    if failure is not None:
        raise failure
    return llm, version
