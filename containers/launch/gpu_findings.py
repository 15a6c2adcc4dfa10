"""Whether the GPUs that nvidia-smi reports are the ones that the profile was made for, and free."""

from collections.abc import Collection

from containers.contracts.hardware import GpuProfile
from containers.contracts.records import CheckFinding
from containers.launch.gpus import Gpu, GpuReport

# What the driver itself holds on an idle card stays below this.
_IDLE_MIB = 1024
# 48 GB cards report 44.99 GiB with ECC on, and 47.99 without.
_MEMORY_TOLERANCE = 0.10


def gpu_findings(
    report: GpuReport, profile: GpuProfile, *, visible: str | None = None, ours: Collection[int] = ()
) -> tuple[CheckFinding, ...]:
    """One row for the count, one for the driver, and one per GPU that the run would use.

    The run uses the first `num_gpus` GPUs, or the first of those that `visible` names.

    Args:
        visible: value of CUDA_VISIBLE_DEVICES where the stage inherits it; None: all GPUs.
        ours: process ids of containers that the run goes on with: they may hold GPUs.
    """
    if profile.num_gpus == 0:
        return (CheckFinding(name="GPUs", found="not looked at", wanted="none (CPU profile)", verdict="ok"),)
    wanted = f"{profile.num_gpus} × {profile.gpu_memory_gib:g} GiB ({profile.name})"
    if report.problem:
        return (
            CheckFinding(name="GPUs", found=report.problem, wanted=wanted, verdict="failure", advice=report.advice),
        )
    usable = _visible(report.gpus, visible)
    return (
        _count(report, usable, profile, wanted=wanted, visible=visible),
        CheckFinding(name="NVIDIA driver", found=report.driver, wanted="any that runs the image's CUDA", verdict="ok"),
        *(_gpu(gpu, profile, ours) for gpu in usable[: profile.num_gpus]),
    )


def _visible(gpus: tuple[Gpu, ...], visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs in CUDA's order: an entry is an index or the beginning of a UUID; an unknown one ends the list."""
    if visible is None:
        return gpus
    chosen: list[Gpu] = []
    for entry in (entry.strip() for entry in visible.split(",")):
        match = [gpu for gpu in gpus if entry == str(gpu.index) or (len(entry) > 4 and gpu.uuid.startswith(entry))]
        if len(match) != 1:
            break
        chosen.append(match[0])
    return tuple(chosen)


def _count(
    report: GpuReport, usable: tuple[Gpu, ...], profile: GpuProfile, *, wanted: str, visible: str | None
) -> CheckFinding:
    names = ", ".join(sorted({gpu.name for gpu in usable})) or "none"
    found = f"{len(usable)} ({names})"
    if visible is not None and len(usable) < len(report.gpus):
        found += f"; CUDA_VISIBLE_DEVICES={visible} of {len(report.gpus)}"
    enough = len(usable) >= profile.num_gpus
    return CheckFinding(
        name="GPUs",
        found=found,
        wanted=wanted,
        verdict="ok" if enough else "failure",
        advice="" if enough else "Choose a profile for fewer GPUs (gpu_profile), or widen CUDA_VISIBLE_DEVICES.",
    )


def _gpu(gpu: Gpu, profile: GpuProfile, ours: Collection[int]) -> CheckFinding:
    kept = _kept(gpu, ours)
    hindrance = _broken(gpu) or _too_small(gpu, profile) or (None if kept else _busy(gpu)) or _sliced(gpu, profile)
    warning = kept or _worn(gpu)
    free = "memory unknown"
    if gpu.memory_total_mib is not None and gpu.memory_used_mib is not None:
        free = f"{gpu.memory_total_mib - gpu.memory_used_mib}/{gpu.memory_total_mib} MiB free"
    temperature = "" if gpu.temperature_c is None else f", {gpu.temperature_c} °C"
    found, advice = hindrance or warning or (f"{gpu.name}, {free}{temperature}", "")
    return CheckFinding(
        name=f"GPU {gpu.index}",
        found=found,
        wanted=f"healthy, free, {profile.gpu_memory_gib:g} GiB",
        verdict="failure" if hindrance else "warning" if warning else "ok",
        advice=advice,
    )


def _broken(gpu: Gpu) -> tuple[str, str] | None:
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
    return None


def _too_small(gpu: Gpu, profile: GpuProfile) -> tuple[str, str] | None:
    if gpu.memory_total_mib is None or gpu.memory_total_mib / 1024 >= profile.gpu_memory_gib * (1 - _MEMORY_TOLERANCE):
        return None
    return (
        f"GPU {gpu.index}: {gpu.memory_total_mib / 1024:.1f} GiB",
        "Choose a profile for smaller cards (gpu_profile), or write one with a smaller max_per_device_batch_size.",
    )


def _busy(gpu: Gpu) -> tuple[str, str] | None:
    by_processes = sum(process.memory_mib or 0 for process in gpu.processes)
    used = max(gpu.memory_used_mib or 0, by_processes)
    if used < _IDLE_MIB and not gpu.processes:
        return None
    holders = ", ".join(f"pid {process.pid} {process.name}" for process in gpu.processes)
    amount = f"{used}/{gpu.memory_total_mib or '?'} MiB" if used else "memory"
    return (
        f"GPU {gpu.index}: {amount} used by others ({holders or 'processes not visible from here'})",
        "Wait until it is free, end the process if it is yours, or choose other GPUs by CUDA_VISIBLE_DEVICES.",
    )


def _kept(gpu: Gpu, ours: Collection[int]) -> tuple[str, str] | None:
    """The GPU is held by nobody but a container that a run of this store left when it died, and that still works."""
    if not gpu.processes or any(process.pid not in ours for process in gpu.processes):
        return None
    return (
        f"GPU {gpu.index}: {gpu.memory_used_mib or '?'}/{gpu.memory_total_mib or '?'} MiB used by a container of a run "
        "that died, which still works",
        "The run goes on with it; `rlhf reap` stops it.",
    )


def _sliced(gpu: Gpu, profile: GpuProfile) -> tuple[str, str] | None:
    if not gpu.mig or profile.num_gpus == 1:
        return None
    return (
        f"GPU {gpu.index}: MIG is on; ranks of one job cannot talk across MIG slices",
        f"Turn it off (`nvidia-smi -i {gpu.index} -mig 0`), or choose a profile for one GPU.",
    )


def _worn(gpu: Gpu) -> tuple[str, str] | None:
    if gpu.mig:
        return (
            f"GPU {gpu.index}: MIG is on; the memory of the slice is not checked",
            "See `nvidia-smi -L` for the slices.",
        )
    if gpu.retired_pages or gpu.ecc_aggregate:
        return (
            f"GPU {gpu.index}: {gpu.retired_pages or 0} retired pages, {gpu.ecc_aggregate or 0} uncorrected ECC errors "
            "over its life, none since the driver was loaded",
            "Works for now; watch it.",
        )
    return None
