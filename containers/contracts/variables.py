"""Which environment variables NCCL, torch and CUDA read, and the verdict on one that a person wants to set.

A name that nobody reads is silently ignored by all of them: somebody believes in it, and nothing happens.
"""

from collections.abc import Mapping

from containers.contracts.known_variables import KNOWN_NCCL, KNOWN_TORCH_NCCL
from containers.contracts.near_words import nearest_word

# Variables that do nothing, or do harm, with what to use instead.
_REFUSED = {
    "NCCL_TIMEOUT": "is read by nobody. The collective time-out is collective_timeout_s in the GPU profile",
    "TORCH_CUDA_ALLOC_CONF": "is read by nobody. The allocator's variable is PYTORCH_ALLOC_CONF (torch.alloc_conf)",
    "NCCL_ASYNC_ERROR_HANDLING": "was renamed to TORCH_NCCL_ASYNC_ERROR_HANDLING (torch.nccl_async_error_handling)",
    "NCCL_BLOCKING_WAIT": "was renamed to TORCH_NCCL_BLOCKING_WAIT, and slows every collective down",
    "TORCH_NCCL_BLOCKING_WAIT": (
        "makes every collective wait, and switches TORCH_NCCL_ASYNC_ERROR_HANDLING off, so that a dead rank is noticed "
        "later. Leave it out"
    ),
    "CUDA_DEVICE_MAX_CONNECTIONS": (
        "is for Megatron's tensor parallelism; it gains nothing for data parallel training and serialises streams"
    ),
    "CUDA_LAUNCH_BLOCKING": "makes every kernel wait. It is for debugging, not for a run",
    "LD_PRELOAD": "changes every program inside; build it into the image instead",
    "PYTHONPATH": "changes what is imported; the image decides that",
    "HF_HUB_OFFLINE": "is set by the launcher: a stage has no network",
    "HF_TOKEN": "is a secret; a stage has no network and needs none",
}
# Names that a key of the profile sets; two ways to say one thing would contradict each other one day.
_TYPED = {
    "NCCL_DEBUG": "nccl.debug",
    "NCCL_P2P_DISABLE": "nccl.p2p_disable",
    "NCCL_P2P_LEVEL": "nccl.p2p_level",
    "NCCL_SHM_DISABLE": "nccl.shm_disable",
    "NCCL_IB_DISABLE": "nccl.ib_disable",
    "NCCL_SOCKET_IFNAME": "nccl.socket_ifname",
    "PYTORCH_ALLOC_CONF": "torch.alloc_conf",
    "PYTORCH_CUDA_ALLOC_CONF": "torch.alloc_conf",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "torch.nccl_async_error_handling",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "torch.nccl_dump_on_timeout",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "torch.nccl_trace_buffer_size",
    "OMP_NUM_THREADS": "num_threads",
    "MKL_NUM_THREADS": "num_threads",
    "RAYON_NUM_THREADS": "num_threads",
}
_EXTRA_PREFIXES = ("NCCL_", "TORCH_NCCL_", "TORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "GLOO_", "OMP_", "MKL_", "PYTORCH_")
# The launcher decides these: which GPUs a stage sees, where a dump survives, and sums that repeat.
_LAUNCHERS_OWN = (
    "CUDA_VISIBLE_DEVICES",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "CUBLAS_WORKSPACE_CONFIG",
    "GLOO_SOCKET_IFNAME",
)
_P2P_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
_NCCL_DEBUG_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")
_OFF = ("", "0")

TCP_WITHIN_ONE_BOX = (
    "p2p off (p2p_disable, or p2p_level LOC, which means never) together with shm_disable makes the GPUs of one box "
    "talk over TCP. Turn off p2p alone first: traffic then goes over shared memory."
)


def refuse_unknown(variables: Mapping[str, str]) -> list[str]:
    """One sentence for each variable that does nothing or does harm, and for each harmful combination.

    Example: `{"NCCL_P2P_LEVEL": "nvl"}` gives one sentence that offers `NVL`. An empty list means that all may pass.
    """
    found = [f"{name}: {reason}." for name, value in sorted(variables.items()) if (reason := _objection(name, value))]
    return found + harmful_combinations(variables)


def harmful_combinations(variables: Mapping[str, str]) -> list[str]:
    """One sentence for each set of variables that are harmless alone and harmful together."""
    without_p2p = _is_on(variables, "NCCL_P2P_DISABLE") or variables.get("NCCL_P2P_LEVEL") == "LOC"
    if without_p2p and _is_on(variables, "NCCL_SHM_DISABLE"):
        return [f"NCCL_SHM_DISABLE: {TCP_WITHIN_ONE_BOX}"]
    return []


def extra_variable_mistakes(variables: Mapping[str, str]) -> list[str]:
    """One sentence for each variable that a GPU profile may not set in its `environment`."""
    found = refuse_unknown(variables)
    for name in sorted(variables):
        if name in _TYPED:
            found.append(f"{name}: has a key of its own in the profile. Set {_TYPED[name]} instead.")
        elif name in _LAUNCHERS_OWN:
            found.append(f"{name}: is set by the launcher. Leave it out.")
        elif not name.startswith(_EXTRA_PREFIXES) and name not in _REFUSED:
            prefixes = ", ".join(_EXTRA_PREFIXES)
            found.append(f"{name}: has nothing to do with the hardware. A profile may set names that begin {prefixes}.")
    return found


def where_a_variable_is_set(name: str) -> str:
    """What to write in a configuration instead of that variable's name; empty where it is none of NCCL, CUDA, torch."""
    if name in _REFUSED:
        return f"{name} {_REFUSED[name]}."
    if name in _TYPED:
        return f"{name} has a key of its own: gpu_profile.{_TYPED[name]}."
    if name in _LAUNCHERS_OWN:
        return f"{name} is set by the launcher. Leave it out."
    if name.startswith(_EXTRA_PREFIXES):
        return f"The variable {name} is set by gpu_profile.environment.{name}."
    return ""


def hardware_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that would steer NCCL, torch's collectives or CUDA's launches, if a stage got them."""
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(("NCCL_", "TORCH_NCCL_"))
        or name in ("TORCH_CUDA_ALLOC_CONF", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS")
    }


def _is_on(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "") not in _OFF


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
    near = nearest_word(value, known)
    offer = f" Did you mean `{near}`?" if near else ""
    return f"`{value}` is silently ignored by NCCL, which takes {', '.join(known)} in exactly this case.{offer}".rstrip(
        "."
    )


def _unknown_name(name: str, known: frozenset[str], *, reader: str) -> str:
    near = nearest_word(name, sorted(known), cutoff=0.75)
    offer = f" Did you mean {near}" if near else " Leave it out"
    return f"is no variable that {reader} reads.{offer}"
