"""A vLLM of the stage's own: a process, or one for each GPU, that knows nothing of the ranks, and loads the model."""

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from containers.contracts.configs.training import VLLM_LORA_RANKS
from containers.harness.errors import BadConfigError
from containers.harness.gpu_shares import ROLLOUT_GPUS_VARIABLE

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
# Of this process's memory. Segments that expand cannot be shared with other GPUs as vLLM shares its buffers
# (vllm issue 42609), and how much it takes is up to vLLM.
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
# It holds the processes themselves, not their numbers, which others may have by then; Linux before 5.3 cannot.
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


@dataclass(frozen=True)
class VllmPlace:
    """Where a vLLM runs and how much it has to hold.

    Attributes:
        model: what it shall be like; its dtype, its device.
        lora_rank: of the adapters that it is given.
        max_length: tokens of prompt and completion.
        sequences: that it writes at a time.
        num_gpus: that it has to itself, the model divided over them; 0: the rank's own GPU.
        memory_fraction: of each GPU.
    """

    model: PreTrainedModel
    lora_rank: int
    max_length: int
    sequences: int
    num_gpus: int
    memory_fraction: float
    seed: int


def load_vllm(folder: str, place: VllmPlace) -> tuple[Any, str]:
    """A `vllm.LLM` with the model in that folder, which takes adapters, and vLLM's version.

    Raises:
        BadConfigError: the adapters have a rank that vLLM does not take.
        Exception: whatever vLLM says of a model that it cannot load.
    """
    room = _lora_room(place.lora_rank)
    space = place.sequences * place.max_length * _token_bytes(place.model)
    with _apart_from_ranks(place, cache_gib=max(1, math.ceil(space / _GIB))):
        import vllm

        llm = vllm.LLM(
            model=folder,
            trust_remote_code=False,
            dtype=str(place.model.dtype).removeprefix("torch."),
            max_model_len=place.max_length,
            max_num_seqs=place.sequences,
            tensor_parallel_size=place.num_gpus or 1,
            enable_lora=True,
            max_loras=1,
            max_lora_rank=room,
            gpu_memory_utilization=place.memory_fraction,
            # Nothing of generation_config.json: what is drawn is the whole distribution.
            generation_config="vllm",
            skip_tokenizer_init=True,
            # Short: compiling costs minutes, and a CPU has nothing to capture.
            enforce_eager=place.model.device.type == "cpu",
            disable_log_stats=True,
            seed=place.seed,
        )
    _fail_when_gone(llm)
    _end_with_this_process(llm)
    return llm, str(vllm.__version__)


def _fail_when_gone(llm: Any) -> None:
    """Let a call that waits for vLLM fail when its process is gone: by itself it waits for ever (vLLM 0.29).

    vLLM notices the end, and says so to the next call alone.
    """
    client = llm.llm_engine.engine_core
    processes = client.resources.engine_manager.processes

    def watch() -> None:
        wait([process.sentinel for process in processes])
        codes = ", ".join(str(process.exitcode) for process in processes)
        client.outputs_queue.put_nowait(ChildProcessError(f"its process ended with {codes}"))

    threading.Thread(target=watch, daemon=True, name="vllm-watch").start()


def _end_with_this_process(llm: Any) -> None:
    """Have vLLM killed when this process is gone, however it died: by itself it would stay, and keep its GPU.

    A guard waits for the end of a pipe that this process alone holds open.
    """
    pids = [str(process.pid) for process in llm.llm_engine.engine_core.resources.engine_manager.processes]
    command = [sys.executable, "-S", "-c", _GUARD, *pids]
    # Kept with what it guards: its pipe is closed when nobody holds it any more.
    llm.guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _lora_room(rank: int) -> int:
    """The smallest rank that vLLM keeps room for and that these adapters fit in."""
    room = next((size for size in VLLM_LORA_RANKS if size >= rank), None)
    if room is None:
        raise BadConfigError(f"vLLM takes adapters of rank {VLLM_LORA_RANKS[-1]} at most, not {rank}; {ELSE}.")
    return room


def _token_bytes(model: PreTrainedModel) -> int:
    """Bytes of one token's keys and values, by the widths of the model's own config."""
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * model.dtype.itemsize)


@contextmanager
def _apart_from_ranks(place: VllmPlace, *, cache_gib: int) -> Iterator[None]:
    """While this is open, what is started sees vLLM's GPUs alone, and does not take itself for a rank.

    It hears no SIGTERM either: that goes to all processes of a stage, and the stage finishes its step and saves first.
    """
    before = dict(os.environ)
    changed = {**_VARIABLES, "VLLM_CPU_KVCACHE_SPACE": str(cache_gib)}
    if place.model.device.type == "cuda":
        changed["CUDA_VISIBLE_DEVICES"] = vllm_gpus(place.model.device, place.num_gpus, before)
    # Started by the first process that is spawned, it would take the signal off the mask.
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
    """The GPUs that vLLM sees, in the form of CUDA_VISIBLE_DEVICES: those without a rank, or this rank's.

    Raises:
        BadConfigError: the profile has not so many GPUs without a rank.
    """
    if num_gpus:
        left = [name for name in environment.get(ROLLOUT_GPUS_VARIABLE, "").split(",") if name]
        if len(left) != num_gpus:
            raise BadConfigError(
                f"train_policy.vllm_gpus is {num_gpus}, and the profile of this stage has {len(left)} GPUs without a "
                f"rank (num_rollout_gpus). `rlhf run` gives both; {ELSE}."
            )
        return ",".join(left)
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    index = device.index or 0
    return visible[index] if visible else str(index)
