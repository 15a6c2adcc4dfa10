"""From typed settings to environment variables, and the verdict on variables that a user wants to add."""

import difflib
from collections.abc import Mapping

from containers.contracts.hardware import GpuProfile
from containers.launch.known_variables import KNOWN_NCCL, KNOWN_TORCH_NCCL

# Set on both sides of the wall, whatever the hardware.
_ALWAYS = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    # Progress goes through events.jsonl; bars would fill the log.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONUNBUFFERED": "1",
    # The work folder is the current folder and the stage may write it: it must not be a place to import from.
    "PYTHONSAFEPATH": "1",
    "LANG": "C.UTF-8",
}

# Names that a process may inherit. Everything else of the parent stays outside, above all tokens and passwords.
_INHERITED_NAMES = frozenset(
    "PATH HOME USER LOGNAME TZ TMPDIR VIRTUAL_ENV LD_LIBRARY_PATH SSL_CERT_FILE SSL_CERT_DIR".split()  # noqa: SIM905
)
_INHERITED_PREFIXES = ("CUDA_", "CONDA_PREFIX", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")


def stage_environment(profile: GpuProfile, *, seed: int) -> tuple[tuple[str, str], ...]:
    """The variables that the profile and the seed demand, sorted; equal for every runtime, so that numbers are too.

    They also stand in `StageSpec.required.environment`: the program checks inside that they arrived.
    """
    variables = dict(_ALWAYS)
    variables["OMP_NUM_THREADS"] = variables["MKL_NUM_THREADS"] = str(profile.num_threads)
    variables["PYTHONHASHSEED"] = str(seed)
    variables.update(_gpu_variables(profile) if profile.num_gpus else {"CUDA_VISIBLE_DEVICES": ""})
    return tuple(sorted(variables.items()))


def folder_environment(work: str) -> dict[str, str]:
    """Caches below the work folder: a home may be read-only or small, and compiled kernels must be loadable."""
    cache = f"{work}/cache"
    return {
        "XDG_CACHE_HOME": cache,
        "HF_HOME": f"{cache}/huggingface",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "MPLCONFIGDIR": f"{cache}/matplotlib",
        # The collective time-out's dump: where it survives the container.
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{work}/nccl_trace_rank_",
    }


def inherited_environment(parent: Mapping[str, str]) -> dict[str, str]:
    """What a child process may take over from its parent: where programs, libraries and GPUs are; no secret."""
    return {
        name: value
        for name, value in parent.items()
        if name in _INHERITED_NAMES or name.startswith(_INHERITED_PREFIXES)
    }


def _gpu_variables(profile: GpuProfile) -> dict[str, str]:
    nccl, torch = profile.nccl, profile.torch
    variables = {
        # cuBLAS repeats its sums only with a fixed workspace.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NCCL_DEBUG": nccl.debug,
        # 3 is torch's own default: take the process down without waiting for the communicator to abort.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3" if torch.nccl_async_error_handling else "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1" if torch.nccl_dump_on_timeout else "0",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": str(torch.nccl_trace_buffer_size),
    }
    switches = {
        "NCCL_P2P_DISABLE": nccl.p2p_disable,
        "NCCL_SHM_DISABLE": nccl.shm_disable,
        "NCCL_IB_DISABLE": nccl.ib_disable,
    }
    variables.update({name: "1" for name, on in switches.items() if on})
    texts = {
        "NCCL_P2P_LEVEL": nccl.p2p_level,
        "NCCL_SOCKET_IFNAME": nccl.socket_ifname,
        "PYTORCH_ALLOC_CONF": torch.alloc_conf,
    }
    variables.update({name: text for name, text in texts.items() if text})
    return variables


# Variables that do nothing, or do harm, with what to use instead.
_REFUSED = {
    "NCCL_TIMEOUT": "is read by nobody. The collective time-out is collective_timeout_s in the GPU profile",
    "TORCH_CUDA_ALLOC_CONF": "is read by nobody. The allocator's variable is PYTORCH_ALLOC_CONF (torch.alloc_conf)",
    "NCCL_ASYNC_ERROR_HANDLING": "was renamed to TORCH_NCCL_ASYNC_ERROR_HANDLING (torch.nccl_async_error_handling)",
    "NCCL_BLOCKING_WAIT": "was renamed to TORCH_NCCL_BLOCKING_WAIT, and slows every collective down",
    "CUDA_DEVICE_MAX_CONNECTIONS": (
        "is for Megatron's tensor parallelism; it gains nothing for data parallel training and serialises streams"
    ),
    "CUDA_LAUNCH_BLOCKING": "makes every kernel wait. It is for debugging, not for a run",
    "LD_PRELOAD": "changes every program inside; build it into the image instead",
    "PYTHONPATH": "changes what is imported; the image decides that",
    "HF_HUB_OFFLINE": "is set by the launcher: a stage has no network",
    "HF_TOKEN": "is a secret; a stage has no network and needs none",
}
_P2P_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
_NCCL_DEBUG_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")


def refuse_unknown(variables: Mapping[str, str]) -> list[str]:
    """One sentence for each variable that a user must not add: it does nothing, does harm, or has a typed setting.

    Example: `{"NCCL_P2P_LEVEL": "nvl"}` gives one sentence that offers `NVL`. An empty list means that all may pass.
    """
    return [f"{name}: {reason}." for name, value in sorted(variables.items()) if (reason := _objection(name, value))]


def _objection(name: str, value: str) -> str:
    if name in _REFUSED:
        return _REFUSED[name]
    if name == "NCCL_P2P_LEVEL" and value not in _P2P_LEVELS:
        return _unknown_value(value, _P2P_LEVELS)
    if name == "NCCL_DEBUG" and value.upper() not in _NCCL_DEBUG_LEVELS:
        return _unknown_value(value, _NCCL_DEBUG_LEVELS)
    if name.startswith("TORCH_NCCL_") and name not in KNOWN_TORCH_NCCL:
        return _unknown_name(name, KNOWN_TORCH_NCCL, reader="torch")
    if name.startswith("NCCL_") and name not in KNOWN_NCCL:
        return _unknown_name(name, KNOWN_NCCL, reader="NCCL")
    return ""


def _unknown_value(value: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(value.upper(), known, n=1, cutoff=0.6)
    offer = f" Did you mean `{near[0]}`?" if near else ""
    return f"`{value}` is silently ignored by NCCL, which takes {', '.join(known)} in exactly this case.{offer}".rstrip(
        "."
    )


def _unknown_name(name: str, known: frozenset[str], *, reader: str) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    offer = f" Did you mean {near[0]}" if near else " Leave it out"
    return f"is no variable that {reader} reads.{offer}"
