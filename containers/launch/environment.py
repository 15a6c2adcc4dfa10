"""Turn typed settings into the environment variables of a stage."""

from collections.abc import Mapping

from containers.contracts.hardware import GpuProfile
from containers.contracts.variables import hardware_variables

# Set on both sides of the container boundary, whatever the hardware.
_ALWAYS = {
    "HF_HUB_OFFLINE": "1",
    # Progress goes through events.jsonl; bars would fill the log.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONUNBUFFERED": "1",
    # The stage may write its current folder, the work folder: Python must not import from it.
    "PYTHONSAFEPATH": "1",
    "LANG": "C.UTF-8",
}

# Names that a stage process may inherit. It gets no other variable of the parent, above all no tokens and passwords.
_INHERITED_NAMES = frozenset(
    "PATH HOME USER LOGNAME TZ TMPDIR VIRTUAL_ENV LD_LIBRARY_PATH SSL_CERT_FILE SSL_CERT_DIR".split()  # noqa: SIM905
)
_INHERITED_PREFIXES = ("CUDA_", "CONDA_PREFIX", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")


def stage_environment(profile: GpuProfile, *, seed: int) -> tuple[tuple[str, str], ...]:
    """The variables of profile and seed, sorted; equal for every runtime, so that results are equal too.

    They are also in `StageSpec.required.environment`: the program checks that it got them.
    """
    variables = dict(_ALWAYS)
    variables["OMP_NUM_THREADS"] = variables["MKL_NUM_THREADS"] = str(profile.num_threads)
    # For the tokenizer, which otherwise takes every core of the machine in each rank.
    variables["RAYON_NUM_THREADS"] = str(profile.num_threads)
    variables["PYTHONHASHSEED"] = str(seed)
    variables.update(_gpu_variables(profile) if profile.num_gpus else {"CUDA_VISIBLE_DEVICES": ""})
    variables.update(profile.environment)
    return tuple(sorted(variables.items()))


def folder_environment(work: str) -> dict[str, str]:
    """Put caches below the work folder: a home may be read-only or small, and compiled kernels must be loadable."""
    cache = f"{work}/cache"
    return {
        "XDG_CACHE_HOME": cache,
        "HF_HOME": f"{cache}/huggingface",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "MPLCONFIGDIR": f"{cache}/matplotlib",
        "CUDA_CACHE_PATH": f"{cache}/cuda",
        "FLASHINFER_WORKSPACE_BASE": cache,
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        # The dump after a collective time-out goes where it survives the container.
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{work}/nccl_trace_rank_",
    }


def inherited_environment(parent: Mapping[str, str]) -> dict[str, str]:
    """Variables that a child process may inherit: where programs, libraries and GPUs are; no secret.

    Variables that steer NCCL or CUDA are left out: the GPU profile sets them.
    """
    steering = hardware_variables(parent)
    return {
        name: value
        for name, value in parent.items()
        if name not in steering and (name in _INHERITED_NAMES or name.startswith(_INHERITED_PREFIXES))
    }


def _gpu_variables(profile: GpuProfile) -> dict[str, str]:
    nccl, torch = profile.nccl, profile.torch
    variables = {
        # cuBLAS repeats its sums only with a fixed workspace.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # By default torch tries cuDNN first on Hopper and Blackwell. For each new length of an attention, cuDNN plans
        # for about half a second, and as long for its backward; in packed rows nearly every length is new.
        "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
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
