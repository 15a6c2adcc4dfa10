"""Environment variables that NCCL, torch and CUDA read, and the verdict on one that a user wants to set.

These libraries silently ignore names that they do not know, so a user would not notice a wrong name.
"""

from collections.abc import Mapping

from containers.near_words import nearest_word

# NVIDIA's NCCL user guide, chapter "Environment Variables"; without the prefix NCCL_.
_NCCL_NAMES = """
ALGO ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CHECKS_DISABLE CHECK_POINTERS COLLNET_ENABLE COLLNET_NODE_THRESHOLD
COMM_BLOCKING COMM_ID COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES CONF_FILE CROSS_NIC CTA_POLICY
CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS
DMABUF_ENABLE DUMP_DIR ENV_PLUGIN GDRCOPY_ENABLE GDR_FLUSH_DISABLE GIN_ENABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER
HOSTID IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY IB_ADDR_RANGE IB_AR_THRESHOLD IB_CUDA_SUPPORT IB_DATA_DIRECT IB_DISABLE
IB_ECE_ENABLE IB_FIFO_TC IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_MERGE_VFS IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT
IB_MQP_RETRY_SLEEP_MSEC IB_PCI_RELAXED_ORDERING IB_QPS_PER_CONNECTION IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS
IB_ROCE_VERSION_NUM IB_SL IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT IB_WARN_RAIL_LOCAL IGNORE_CPU_AFFINITY LAUNCH_MODE
LAUNCH_ORDER_IMPLICIT LL128_THRESHOLD LL_THRESHOLD MAX_CTAS MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS MIN_CTAS
MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS MNNVL_CLIQUE_ID MNNVL_ENABLE MNNVL_UUID NCHANNELS_PER_NET_PEER NET
NETDEVS_POLICY NET_DISABLE_INTRA NET_FORCE_MERGE NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_MERGE_LEVEL NET_PLUGIN
NET_SHARED_BUFFERS NET_SHARED_COMMS NSOCKS_PERTHREAD NTHREADS NVB_DISABLE NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE
NVLS_ENABLE OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_DISABLE P2P_LEVEL P2P_LL_THRESHOLD P2P_NET_CHUNKSIZE
P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_PXN_LEVEL P2P_USE_CUDA_MEMCPY PROFILER_PLUGIN PROTO PXN_C2C PXN_DISABLE
RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR RUNTIME_CONNECT SET_STACK_SIZE SET_THREAD_NAME SHM_DISABLE SHM_LOCALITY
SHM_USE_CUDA_MEMCPY SINGLE_PROC_MEM_REG_ENABLE SINGLE_RING_THRESHOLD SOCKET_FAMILY SOCKET_IFNAME SOCKET_INLINE
SOCKET_MIN_TASKSIZE SOCKET_NTHREADS SOCKET_POLL_TIMEOUT_MSEC SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC STORE_IFNAME
SYM_CTAS TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK TOPO_FILE TREE_THRESHOLD TUNER_CONFIG_FILE TUNER_PLUGIN
UNPACK_DOUBLE_NCHANNELS WIN_ENABLE WIN_STRIDE WORK_ARGS_BYTES WORK_FIFO_BYTES
"""

# From the libraries, headers and Python files of torch 2.13; without the prefix TORCH_NCCL_.
_TORCH_NCCL_NAMES = """
ASYNC_ERROR_HANDLING AVOID_RECORD_STREAMS BCAST_UNIQUEID BLOCKING_WAIT COORD_CHECK_MILSEC CUDA_EVENT_CACHE
DEBUG_INFO_PIPE_FILE DEBUG_INFO_TEMP_FILE DESYNC_DEBUG DUMP_ON_TIMEOUT ENABLE_MONITORING ENABLE_TIMING
EXTRA_DUMP_ON_EXEC HEARTBEAT_TIMEOUT_SEC HIGH_PRIORITY LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN NAN_CHECK PROPAGATE_ERROR
RANKS_PER_ROOT RETHROW_CUDA_ERRORS SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING TRACE_BUFFER_SIZE TRACE_CPP_STACK
USE_TENSOR_REGISTER_ALLOCATOR_HOOK WAIT_TIMEOUT_DUMP_MILSEC
"""

KNOWN_NCCL = frozenset(f"NCCL_{name}" for name in _NCCL_NAMES.split())
KNOWN_TORCH_NCCL = frozenset(f"TORCH_NCCL_{name}" for name in _TORCH_NCCL_NAMES.split())


# Variables that do nothing, or do harm, with what to use instead.
_REFUSED = {
    "NCCL_TIMEOUT": "is read by no library. The collective time-out is collective_timeout_s in the GPU profile",
    "TORCH_CUDA_ALLOC_CONF": "is read by no library. The allocator's variable is PYTORCH_ALLOC_CONF (torch.alloc_conf)",
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
# Names that a key of the profile sets; two ways to set one thing could contradict each other.
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
# The launcher sets these: the visible GPUs, a place where a dump survives, and repeatable sums.
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
    """One message for each variable that does nothing or does harm, and for each harmful combination.

    Example: `{"NCCL_P2P_LEVEL": "nvl"}` gives one message that suggests `NVL`. An empty list: all are accepted.
    """
    found = [f"{name}: {reason}." for name, value in sorted(variables.items()) if (reason := _objection(name, value))]
    without_p2p = _is_on(variables, "NCCL_P2P_DISABLE") or variables.get("NCCL_P2P_LEVEL") == "LOC"
    if without_p2p and _is_on(variables, "NCCL_SHM_DISABLE"):
        found.append(f"NCCL_SHM_DISABLE: {TCP_WITHIN_ONE_BOX}")
    return found


def extra_variable_mistakes(variables: Mapping[str, str]) -> list[str]:
    """One sentence for each variable that a GPU profile may not set in its `environment`."""
    found = refuse_unknown(variables)
    for name in sorted(variables):
        if name in _TYPED:
            found.append(f"{name}: has its own key in the profile. Set {_TYPED[name]} instead.")
        elif name in _LAUNCHERS_OWN:
            found.append(f"{name}: is set by the launcher. Leave it out.")
        elif not name.startswith(_EXTRA_PREFIXES) and name not in _REFUSED:
            prefixes = ", ".join(_EXTRA_PREFIXES)
            found.append(f"{name}: is no hardware variable. A profile may set names that begin with {prefixes}.")
    return found


def where_a_variable_is_set(name: str) -> str:
    """How a configuration sets what that variable sets; empty where it is no variable of NCCL, CUDA or torch."""
    if name in _REFUSED:
        return f"{name} {_REFUSED[name]}."
    if name in _TYPED:
        return f"{name} has its own key: gpu_profile.{_TYPED[name]}."
    if name in _LAUNCHERS_OWN:
        return f"{name} is set by the launcher. Leave it out."
    if name.startswith(_EXTRA_PREFIXES):
        return f"The variable {name} is set by gpu_profile.environment.{name}."
    return ""


def hardware_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that would change NCCL, torch's collectives or CUDA's launches, if a stage got them."""
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
    return f"NCCL silently ignores `{value}`.{offer} Give one of {', '.join(known)}, in exactly this case"


def _unknown_name(name: str, known: frozenset[str], *, reader: str) -> str:
    near = nearest_word(name, sorted(known), cutoff=0.75)
    offer = f" Did you mean {near}" if near else " Leave it out"
    return f"is no variable that {reader} reads.{offer}"
