"""Judge one GPU: faulty, in use, or degraded. Each issue is a finding and what to do about it."""

from collections.abc import Collection

from containers.launch.gpus.inventory import Gpu

# On an idle card the driver itself holds less memory than this.
IDLE_MIB = 1024
# 48 GB cards report 44.99 GiB with ECC on, and 47.99 without.
_MEMORY_TOLERANCE = 0.10

GpuIssue = tuple[str, str]


def faulty(gpu: Gpu) -> GpuIssue | None:
    """Issue of a GPU with memory faults, on which no stage may compute; None where there is none."""
    if gpu.ecc_volatile:
        return (
            f"GPU {gpu.index}: {gpu.ecc_volatile} uncorrected ECC errors since the driver was loaded",
            "Results may be wrong. Take the card out of CUDA_VISIBLE_DEVICES, and reset it "
            f"(`nvidia-smi -r -i {gpu.index}`) or have it replaced.",
        )
    if gpu.retirement_pending:
        return (
            f"GPU {gpu.index}: a memory page waits to be retired ({gpu.retired_pages or 0} retired so far)",
            "Reboot, so that the page is taken out of use; then check again.",
        )
    if gpu.health.remap_failed:
        return (
            f"GPU {gpu.index}: a bad row of its memory could not be replaced",
            "Take the card out of CUDA_VISIBLE_DEVICES, and have it replaced.",
        )
    if gpu.health.remap_pending:
        return (
            f"GPU {gpu.index}: a bad row of its memory waits to be replaced",
            f"Reset the card (`nvidia-smi -r -i {gpu.index}`) or reboot; then check again.",
        )
    return None


def is_large_enough(gpu: Gpu, memory_gib: float) -> bool:
    """Whether the card has that much memory; True where it does not report its memory."""
    return gpu.memory_total_mib is None or gpu.memory_total_mib / 1024 >= memory_gib * (1 - _MEMORY_TOLERANCE)


def in_use(gpu: Gpu, *, ours: Collection[int] = ()) -> GpuIssue | None:
    """Issue of a GPU on which other programs hold memory; None where it is free.

    Args:
        ours: process ids of containers that dead runs of ours left; they do not count.
    """
    others = [process for process in gpu.processes if process.pid not in ours]
    if gpu.processes and not others:
        return None
    by_processes = sum(process.memory_mib or 0 for process in gpu.processes)
    used = max(gpu.memory_used_mib or 0, by_processes)
    if used < IDLE_MIB and not others:
        return None
    holders = ", ".join(f"pid {process.pid} {process.name}" for process in others)
    amount = f"{used}/{gpu.memory_total_mib or '?'} MiB" if used else "memory"
    return (
        f"GPU {gpu.index}: {amount} used by others ({holders or 'processes not visible from here'})",
        "Wait until it is free, end the process if it is yours, or choose other GPUs by CUDA_VISIBLE_DEVICES.",
    )


def degraded(gpu: Gpu) -> GpuIssue | None:
    """Issue of a GPU that works with a defect: other GPUs are preferred; None where there is none."""
    if gpu.mig:
        return (
            f"GPU {gpu.index}: MIG is on; the memory of the slice is not checked",
            "See `nvidia-smi -L` for the slices.",
        )
    if gpu.health.xids:
        return (
            f"GPU {gpu.index}: Xid errors in the kernel's log: {', '.join(gpu.health.xids)}",
            f"Look at `dmesg | grep -i xid`; reset it (`nvidia-smi -r -i {gpu.index}`) if that was not done since.",
        )
    if gpu.health.throttled:
        return (
            f"GPU {gpu.index}: runs slower than it could: {', '.join(gpu.health.throttled)}",
            "All ranks wait for the slowest card: look at its fan, its slot and its power cable.",
        )
    if gpu.retired_pages or gpu.ecc_aggregate:
        return (
            f"GPU {gpu.index}: {gpu.retired_pages or 0} retired pages, {gpu.ecc_aggregate or 0} uncorrected ECC errors "
            "over its life, none since the driver was loaded",
            "Works for now; watch it.",
        )
    return None


def is_healthy(gpu: Gpu) -> bool:
    """Whether `auto` may use it: not faulty, not throttled, no Xid error of the card, no MIG."""
    return not (faulty(gpu) or gpu.mig or gpu.health.xids or gpu.health.throttled)


def visible_gpus(gpus: tuple[Gpu, ...], visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs in CUDA's order: an entry is an index or the beginning of a UUID; an unknown one ends the list.

    Args:
        visible: value of CUDA_VISIBLE_DEVICES; None: all GPUs.
    """
    if visible is None:
        return gpus
    chosen: list[Gpu] = []
    for entry in (entry.strip() for entry in visible.split(",")):
        match = [gpu for gpu in gpus if entry == str(gpu.index) or (len(entry) > 4 and gpu.uuid.startswith(entry))]
        if len(match) != 1:
            break
        chosen.append(match[0])
    return tuple(chosen)
