"""Start the stage's vLLM: one process, or one per GPU, that is no rank and loads the model itself."""

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from containers.contracts.configs.parts.training import VLLM_LORA_RANKS
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.harness.gpu_shares import ROLLOUT_GPUS_VARIABLE

ELSE = "use train_policy.rollout_engine: shared_prompts instead"
# torchrun's variables for a rank; with them, vLLM's processes would act as that rank.
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
_VARIABLES = {
    "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# Memory settings of this process. vLLM cannot share buffers in expandable segments with other GPUs (vllm issue 42609),
# and it decides its own memory.
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
# The guard holds handles of the processes, not their ids, which may be reused; Linux before 5.3 has no such handles.
_GUARD = """
import contextlib, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with contextlib.suppress(OSError):
    processes = [os.pidfd_open(int(pid)) for pid in sys.argv[1:]]
    sys.stdin.read()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
"""
_GIB = 1024**3


def load_vllm(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, *, lora_rank: int
) -> tuple[Any, str]:
    """Start a `vllm.LLM` with the start model and room for adapters; return it and vLLM's version.

    Args:
        model: the start model as this rank has it; gives dtype, device and shape.
        lora_rank: rank of the adapters.

    Raises:
        BadConfigError: the adapters have a rank that vLLM does not support.
        Exception: vLLM cannot load the model.
    """
    room = _lora_room(lora_rank)
    batch, max_length = context.spec.batch, config.max_prompt_length + config.max_completion_length
    of_a_rank = batch.per_device_batch_size * batch.gradient_accumulation_steps
    sequences = of_a_rank * (batch.num_processes if config.vllm_gpus else 1)
    space = sequences * max_length * _token_bytes(model)
    with _apart_from_ranks(model.device, config.vllm_gpus, cache_gib=max(1, math.ceil(space / _GIB))):
        import vllm

        llm = vllm.LLM(
            model=str(context.input_path("start_model")),
            trust_remote_code=False,
            dtype=str(model.dtype).removeprefix("torch."),
            max_model_len=max_length,
            max_num_seqs=sequences,
            tensor_parallel_size=config.vllm_gpus or 1,
            enable_lora=True,
            max_loras=1,
            max_lora_rank=room,
            gpu_memory_utilization=config.vllm_fraction,
            # Ignores generation_config.json: sampling is from the whole distribution.
            generation_config="vllm",
            skip_tokenizer_init=True,
            # Eager on a CPU: compiling takes minutes, and there are no CUDA graphs to capture.
            enforce_eager=model.device.type == "cpu",
            disable_log_stats=True,
            seed=context.spec.seed,
        )
    _fail_when_gone(llm)
    _end_with_this_process(llm)
    return llm, str(vllm.__version__)


def _fail_when_gone(llm: Any) -> None:
    """Make a call that waits for vLLM fail when its process is gone: otherwise it waits forever (vLLM 0.29).

    vLLM notices the end, but reports it only to the next call.
    """
    client = llm.llm_engine.engine_core
    processes = client.resources.engine_manager.processes

    def watch() -> None:
        wait([process.sentinel for process in processes])
        codes = ", ".join(str(process.exitcode) for process in processes)
        client.outputs_queue.put_nowait(ChildProcessError(f"its process ended with {codes}"))

    threading.Thread(target=watch, daemon=True, name="vllm-watch").start()


def _end_with_this_process(llm: Any) -> None:
    """Have vLLM killed when this process is gone, however it died: otherwise vLLM would stay, and keep its GPU.

    A guard process waits for the end of a pipe that only this process holds open.
    """
    pids = [str(process.pid) for process in llm.llm_engine.engine_core.resources.engine_manager.processes]
    command = [sys.executable, "-S", "-c", _GUARD, *pids]
    # Stored on `llm`: the pipe closes when the guard object is freed.
    llm.guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _lora_room(rank: int) -> int:
    """Return the smallest of vLLM's LoRA ranks that holds these adapters."""
    room = next((size for size in VLLM_LORA_RANKS if size >= rank), None)
    if room is None:
        raise BadConfigError(f"vLLM takes adapters of rank {VLLM_LORA_RANKS[-1]} at most, not {rank}; {ELSE}.")
    return room


def _token_bytes(model: PreTrainedModel) -> int:
    """Bytes of one token's keys and values, from the widths in the model's config."""
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * model.dtype.itemsize)


@contextmanager
def _apart_from_ranks(device: torch.device, num_gpus: int, *, cache_gib: int) -> Iterator[None]:
    """While this is open, started processes see only vLLM's GPUs and are no ranks.

    They also ignore SIGTERM: it goes to all processes of a stage, and the stage first finishes its step and saves.

    Args:
        device: this rank's.
        num_gpus: GPUs for vLLM alone, over which it divides the model; 0: the rank's own GPU.
    """
    before = dict(os.environ)
    changed = {**_VARIABLES, "VLLM_CPU_KVCACHE_SPACE": str(cache_gib)}
    if device.type == "cuda":
        changed["CUDA_VISIBLE_DEVICES"] = vllm_gpus(device, num_gpus, before)
    # Start the tracker now: the first spawned process would start it, and the start would unblock SIGTERM.
    resource_tracker.ensure_running()
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        for name in before:
            if name.startswith(_RANK_VARIABLES) or name in _ALLOCATOR_VARIABLES:
                del os.environ[name]
        os.environ.update(changed)
        os.environ.setdefault("VLLM_CACHE_ROOT", str(Path(before.get("XDG_CACHE_HOME", "/tmp")) / "vllm"))  # noqa: S108
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        os.environ.clear()
        os.environ.update(before)


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
