"""Judge one GPU: faulty, in use, or degraded. Each issue is a finding and what to do about it."""

from collections.abc import Collection

from containers.launch.gpus.cards import Gpu

# On an idle card the driver itself holds less memory than this.
IDLE_MIB = 1024
# 48 GB cards report 44.99 GiB with ECC on, and 47.99 without.
_MEMORY_TOLERANCE = 0.10
# bf16 in hardware begins with Ampere; nothing here computes in fp16, whose small range training overflows.
_OLDEST_CAPABILITY = (8, 0)
_SICK_ADVICE = {
    "permission": "It was not passed to this user or container; leave it out, or pass it.",
    "lost": "It fell off the bus: reboot; if it comes again, replace the card or its riser.",
    "res": "Reset it (`nvidia-smi -r -i {index}`) while no program uses it, or reboot.",
    "": "Look at `dmesg | grep -i xid`; reset it (`nvidia-smi -r -i {index}`) or reboot.",
}

GpuIssue = tuple[str, str]


def faulty(gpu: Gpu) -> GpuIssue | None:
    """Issue of a GPU that does not answer, or on which no stage may compute; None where there is none."""
    if gpu.sick:
        advice = next(advice for sign, advice in _SICK_ADVICE.items() if sign in gpu.sick.lower())
        name = f" ({gpu.name})" if gpu.name else ""
        return (
            f"GPU {gpu.index}{name}: does not work, the driver says: {gpu.sick}",
            f"{advice.format(index=gpu.index)} The other cards work without it.",
        )
    return _incapable(gpu) or _with_bad_memory(gpu)


def _incapable(gpu: Gpu) -> GpuIssue | None:
    if gpu.is_prohibited:
        return (
            f"GPU {gpu.index}: its compute mode lets no program use it",
            f"Allow programs: `nvidia-smi -i {gpu.index} -c DEFAULT`.",
        )
    if gpu.compute_capability is not None and gpu.compute_capability < _OLDEST_CAPABILITY:
        found, oldest = (".".join(map(str, version)) for version in (gpu.compute_capability, _OLDEST_CAPABILITY))
        return (
            f"GPU {gpu.index}: {gpu.name} cannot compute in bf16 (compute capability {found}, wanted {oldest})",
            "Use cards from Ampere on (A100, RTX 30, L4 and newer). fp16 is no way out: its largest number is 65,504, "
            "which gradients of a language model exceed.",
        )
    return None


def _with_bad_memory(gpu: Gpu) -> GpuIssue | None:
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
    """Whether the card has that much memory; a card that does not report its memory is only large enough for 0."""
    return (gpu.memory_total_mib or 0) / 1024 >= memory_gib * (1 - _MEMORY_TOLERANCE)


def memory_text(gpu: Gpu) -> str:
    """Its memory, in GiB."""
    if gpu.memory_total_mib is None:
        return "memory unknown: the driver does not report it (boards that share the processor's)"
    return f"{gpu.memory_total_mib / 1024:.1f} GiB"


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
    if gpu.health.unreadable:
        return (
            f"GPU {gpu.index}: the driver fails to read its {', '.join(gpu.health.unreadable)}",
            f"A card often shows this before it fails: look at `dmesg | grep -i xid`, and reset it "
            f"(`nvidia-smi -r -i {gpu.index}`).",
        )
    if gpu.retired_pages or gpu.ecc_aggregate:
        return (
            f"GPU {gpu.index}: {gpu.retired_pages or 0} retired pages, {gpu.ecc_aggregate or 0} uncorrected ECC errors "
            "over its life, none since the driver was loaded",
            "Works for now; watch it.",
        )
    if gpu.health.bad_inforom:
        return (
            f"GPU {gpu.index}: its infoROM is corrupt; it computes well",
            "Settings and counters of errors may be lost at a reboot: have it looked at when there is time.",
        )
    return None


def is_healthy(gpu: Gpu) -> bool:
    """Whether `auto` may use it: not faulty, not throttled, no Xid error of the card, all figures readable, no MIG."""
    health = gpu.health
    return not (faulty(gpu) or gpu.mig or health.xids or health.throttled or health.unreadable)


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
