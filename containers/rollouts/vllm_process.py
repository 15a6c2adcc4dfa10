"""Processes of vLLM: started apart from the ranks, and never left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any

import psutil
import torch

from containers.harness.errors import BadConfigError
from containers.harness.gpu_shares import ROLLOUT_GPUS_VARIABLE

# torchrun's variables for a rank; with them, vLLM's processes would act as that rank.
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
_VARIABLES = {
    "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # FlashInfer's sampler is compiled when the engine starts, with nvcc, which a runtime image lacks; vLLM 0.29 then
    # ends. Requests with a seed, as ours, never use it.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
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
ELSE = "use train_policy.rollout_engine: shared_prompts instead"
_SHUTDOWN_S = 1.0
# After which a process that was killed is not waited for any longer.
_END_S = 10.0


def watched(llm: Any) -> Any:
    """Return the `vllm.LLM`, whose processes end with this one, and whose calls fail once they are gone."""
    _fail_when_gone(llm)
    _end_with_this_process(llm)
    return llm


def end_vllm(llm: Any) -> None:
    """End its processes, and wait until their GPUs are free. vLLM ignores SIGTERM, and is killed after a second.

    Those of one model on several GPUs are children of its process, and end after it.
    """
    client = llm.llm_engine.engine_core
    left = _all_processes(llm)
    with sigterm_blocked():
        client.shutdown(timeout=_SHUTDOWN_S)
        _, alive = psutil.wait_procs(left, timeout=_END_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=_END_S)


def _all_processes(llm: Any) -> list[psutil.Process]:
    """Return vLLM's processes with their children; empty if they are gone."""
    found: list[psutil.Process] = []
    for process in llm.llm_engine.engine_core.resources.engine_manager.processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(process.pid)
            found += [own, *own.children(recursive=True)]
    return found


@contextmanager
def sigterm_blocked() -> Iterator[None]:
    """Have SIGTERM wait while this is open; it goes to all processes of a stage."""
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)


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
    pids = [str(process.pid) for process in _all_processes(llm)]
    command = [sys.executable, "-S", "-c", _GUARD, *pids]
    # Stored on `llm`: the pipe closes when the guard object is freed.
    llm.guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


@contextmanager
def apart_from_ranks(gpus: str, *, cache_gib: int) -> Iterator[None]:
    """While this is open, started processes see only vLLM's GPUs and are no ranks.

    They also ignore SIGTERM: it goes to all processes of a stage, and the stage first finishes its step and saves.

    Args:
        gpus: those that vLLM sees, as CUDA_VISIBLE_DEVICES; empty: as before.
        cache_gib: of a vLLM on a processor.
    """
    before = dict(os.environ)
    changed = {**_VARIABLES, "VLLM_CPU_KVCACHE_SPACE": str(cache_gib)}
    if gpus:
        changed["CUDA_VISIBLE_DEVICES"] = gpus
    # Start the tracker now: the first spawned process would start it, and the start would unblock SIGTERM.
    resource_tracker.ensure_running()
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        for name in before:
            if name.startswith(_RANK_VARIABLES) or name in _ALLOCATOR_VARIABLES:
                del os.environ[name]
        os.environ.update(changed)
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
