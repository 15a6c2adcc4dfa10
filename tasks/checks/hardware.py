"""Rows of the system check about GPUs: those the run would use, their users, choice of profile, stray variables."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from containers.contracts.hardware import GpuProfile
from containers.contracts.records import CheckFinding
from containers.contracts.registries import RuntimeName
from containers.contracts.variables import hardware_variables, refuse_unknown
from containers.launch.gpus.inventory import Gpu, GpuReport, read_gpus
from containers.launch.gpus.leases import lease_folder, leased_gpus
from containers.launch.gpus.verdicts import degraded, faulty, in_use, is_large_enough, visible_gpus
from tasks.pipeline.reap import processes_to_take_over


def gpu_rows(profile: GpuProfile, runtime: RuntimeName, *, store_dir: Path) -> Iterator[CheckFinding]:
    """Why `auto` took this profile, the number of GPUs, the driver, and each GPU that the run would use."""
    report = read_gpus() if profile.num_gpus else GpuReport()
    ours = processes_to_take_over(store_dir) if profile.num_gpus and runtime == "docker" else frozenset()
    if profile.chosen_because:  # empty if the user named the profile
        yield CheckFinding(name="GPU profile", found=profile.chosen_because, wanted=profile.name, verdict="ok")
    yield from gpu_findings(
        report,
        profile,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        ours=ours,
        leased=leased_gpus([gpu.uuid for gpu in report.gpus], folder=lease_folder()),
    )


def variable_rows(environment: Mapping[str, str]) -> Iterator[CheckFinding]:
    """Shell variables that configure NCCL or torch: stages do not get them, so they have no effect."""
    found = hardware_variables(environment)
    if found:
        advice = "They reach no stage: set them in the GPU profile (`nccl`, `torch`, `environment`)."
        yield CheckFinding(
            name="variables",
            found=f"{', '.join(sorted(found))} in the environment of this program",
            wanted="none: stages get those of the GPU profile",
            verdict="warning",
            advice=" ".join([advice, *refuse_unknown(found)]),
        )


def gpu_findings(
    report: GpuReport,
    profile: GpuProfile,
    *,
    visible: str | None = None,
    ours: Collection[int] = (),
    leased: Mapping[str, str] | None = None,
) -> tuple[CheckFinding, ...]:
    """One row for the count, one for the driver, and one per GPU that the run would use.

    The run uses the best `num_gpus` of the GPUs that `visible` names: good and free ones before the others.

    Args:
        visible: value of CUDA_VISIBLE_DEVICES; None: all GPUs.
        ours: process ids of containers that the run takes over: they may hold GPUs.
        leased: GPU UUID → which other run has it; the stages wait for it, so the run may start.
    """
    if profile.num_gpus == 0:
        return (CheckFinding(name="GPUs", found="not looked at", wanted="none (CPU profile)", verdict="ok"),)
    wanted = f"{profile.num_gpus} × {profile.gpu_memory_gib:g} GiB ({profile.name})"
    if report.problem:
        return (
            CheckFinding(name="GPUs", found=report.problem, wanted=wanted, verdict="failure", advice=report.advice),
        )
    usable = visible_gpus(report.gpus, visible)
    rows = [_gpu(gpu, profile, ours, leased or {}) for gpu in usable]
    order = {"ok": 0, "warning": 1, "failure": 2}
    best = sorted(rows, key=lambda row: order[row.verdict])[: profile.num_gpus]
    return (
        _count(report, usable, profile, wanted=wanted, visible=visible),
        CheckFinding(
            name="NVIDIA driver",
            found=report.driver,
            wanted="not compared with the image's CUDA: the stage's first use of a GPU tells",
            verdict="ok",
        ),
        *(row for row in rows if row in best),
    )


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


def _gpu(gpu: Gpu, profile: GpuProfile, ours: Collection[int], leased: Mapping[str, str]) -> CheckFinding:
    kept = _kept(gpu, ours) or _leased(gpu, leased)
    hindrance = faulty(gpu) or _too_small(gpu, profile) or (None if kept else in_use(gpu)) or _sliced(gpu, profile)
    warning = kept or degraded(gpu)
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


def _too_small(gpu: Gpu, profile: GpuProfile) -> tuple[str, str] | None:
    if is_large_enough(gpu, profile.gpu_memory_gib) or gpu.memory_total_mib is None:
        return None
    return (
        f"GPU {gpu.index}: {gpu.memory_total_mib / 1024:.1f} GiB",
        "Choose a profile for smaller cards (gpu_profile), or write one with a smaller max_per_device_batch_size.",
    )


def _kept(gpu: Gpu, ours: Collection[int]) -> tuple[str, str] | None:
    """Found and advice, if the GPU is used only by a container of a dead run of this store that still works."""
    if not gpu.processes or any(process.pid not in ours for process in gpu.processes):
        return None
    return (
        f"GPU {gpu.index}: {gpu.memory_used_mib or '?'}/{gpu.memory_total_mib or '?'} MiB used by a container of a run "
        "that died, which still works",
        "The run goes on with it; `rlhf reap` stops it.",
    )


def _leased(gpu: Gpu, leased: Mapping[str, str]) -> tuple[str, str] | None:
    if gpu.uuid not in leased:
        return None
    return f"GPU {gpu.index}: {leased[gpu.uuid]} has it now", "The stages of this run wait for it, one after another."


def _sliced(gpu: Gpu, profile: GpuProfile) -> tuple[str, str] | None:
    if not gpu.mig or profile.num_gpus == 1:
        return None
    return (
        f"GPU {gpu.index}: MIG is on; ranks of one job cannot talk across MIG slices",
        f"Turn it off (`nvidia-smi -i {gpu.index} -mig 0`), or choose a profile for one GPU.",
    )
