"""Rows of the system check about GPUs: driver, those the run would use, their users and links, choice of profile."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from containers.contracts.hardware import GpuProfile
from containers.contracts.records import CheckFinding
from containers.contracts.registries import RuntimeName, capabilities
from containers.contracts.variables import hardware_variables, refuse_unknown
from containers.launch.gpus.cards import Gpu, GpuReport
from containers.launch.gpus.drivers import NO_CUDA, driver_objection, parsed_version
from containers.launch.gpus.inventory import read_gpus
from containers.launch.gpus.leases import lease_folder, leased_gpus
from containers.launch.gpus.verdicts import degraded, faulty, in_use, is_large_enough, memory_text, visible_gpus
from tasks.config.loading import shipped_profiles
from tasks.pipeline.reap import processes_to_take_over

_ORDER = {"ok": 0, "warning": 1, "failure": 2}


def gpu_rows(
    profile: GpuProfile, runtime: RuntimeName, *, store_dir: Path, cuda: str, shares_cards: bool = False
) -> Iterator[CheckFinding]:
    """Why `auto` took this profile, the number of GPUs, the driver, and each GPU that the run would use.

    Args:
        shares_cards: whether two programs use a card at the same time.
        cuda: that the torch of the stages was built with, as `13.0`, `none`, or empty where it is not known.
    """
    report = read_gpus() if profile.num_gpus else GpuReport()
    leaves_programs = profile.num_gpus > 0 and capabilities(runtime).survives_orchestrator
    ours = processes_to_take_over(store_dir) if leaves_programs else frozenset()
    if profile.chosen_because:  # empty if the user named the profile
        yield CheckFinding(name="GPU profile", found=profile.chosen_because, wanted=profile.name, verdict="ok")
    yield from gpu_findings(
        report,
        profile,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        ours=ours,
        leased=leased_gpus(report.uuids, folder=lease_folder()),
        shares_cards=shares_cards,
    )
    if report.gpus:
        yield driver_finding(report, cuda, runtime)


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
    shares_cards: bool = False,
) -> tuple[CheckFinding, ...]:
    """One row for the count, one for each GPU that the run would use or that is out of order, one for their links.

    The run uses the best `num_gpus` of the GPUs that `visible` names: good and free ones before the others.

    Args:
        visible: value of CUDA_VISIBLE_DEVICES; None: all GPUs.
        ours: process ids of containers that the run takes over: they may hold GPUs.
        leased: GPU UUID → which other run has it; the stages wait for it, so the run may start.
        shares_cards: whether two programs use a card at the same time.
    """
    if profile.num_gpus == 0:
        return (CheckFinding(name="GPUs", found="not looked at", wanted="none (CPU profile)", verdict="ok"),)
    if report.problem:
        wanted = _wanted(profile)
        return (
            CheckFinding(name="GPUs", found=report.problem, wanted=wanted, verdict="failure", advice=report.advice),
        )
    usable = visible_gpus(report.gpus, visible)
    rows = [(gpu, _gpu(gpu, profile, ours, leased or {})) for gpu in usable]
    best = sorted(rows, key=lambda row: _ORDER[row[1].verdict])[: profile.num_gpus]
    left_out = [_left_out(row) for gpu, row in rows if (gpu, row) not in best and faulty(gpu)]
    return (
        _count(report, usable, profile, visible=visible),
        *(row for _, row in rows if any(row is chosen for _, chosen in best)),
        *left_out,
        *_links([gpu for gpu, _ in best], profile),
        *(_exclusive([gpu for gpu, _ in best]) if shares_cards else ()),
    )


def _exclusive(gpus: Sequence[Gpu]) -> Iterator[CheckFinding]:
    """A row if cards are for one program at a time, where a stage and its vLLM use one together."""
    numbers = ",".join(str(gpu.index) for gpu in gpus if gpu.is_exclusive)
    if numbers:
        yield CheckFinding(
            name="compute mode",
            found=f"GPU {numbers}: one program at a time (EXCLUSIVE_PROCESS)",
            wanted="DEFAULT, for a stage and its vLLM use a card together",
            verdict="failure",
            advice=f"`nvidia-smi -i {numbers} -c DEFAULT`, or let no vLLM share a card: GPUs of its own "
            "(train_policy.vllm_gpus), and transformers where models are evaluated.",
        )


def driver_finding(report: GpuReport, cuda: str, runtime: RuntimeName) -> CheckFinding:
    """Whether the driver runs the CUDA that the torch of the stages was built with."""
    newest = "" if report.cuda is None else f" (runs CUDA up to {'.'.join(map(str, report.cuda))})"
    found = f"{report.driver or 'version unknown'}{newest}"
    in_image = capabilities(runtime).runs_image
    wanted_by, version = ("the image" if in_image else "this Python"), parsed_version(cuda)
    if cuda == NO_CUDA:
        rebuilt = "Build it on a CUDA base: `make image IMAGE=… BASE_IMAGE=pytorch/pytorch:…` (docs/hardware.md)."
        installed = "Install a CUDA build of torch into it, or use Docker (`--set runtime.kind=docker`)."
        return CheckFinding(
            name="NVIDIA driver",
            found=f"{found}; the torch of {wanted_by} is built without CUDA",
            wanted="a torch that uses GPUs",
            verdict="failure",
            advice=rebuilt if in_image else installed,
        )
    if version is None:
        return CheckFinding(
            name="NVIDIA driver",
            found=f"{found}; {wanted_by} does not say which CUDA it has",
            wanted="a driver that runs it",
            verdict="warning",
            advice="Build the image anew (`make image`), so that it says so." if in_image else "",
        )
    problem, advice = driver_objection(report.driver, version)
    if not problem and report.cuda is not None and report.cuda[0] < version[0]:
        problem, advice = f"the driver runs CUDA {report.cuda[0]} at most", "Install a newer driver."
    return CheckFinding(
        name="NVIDIA driver",
        found=f"{found}; {problem}" if problem else found,
        wanted=f"runs CUDA {cuda}, that of {wanted_by}",
        verdict="failure" if problem else "ok",
        advice=advice,
    )


def _wanted(profile: GpuProfile) -> str:
    return f"{profile.num_gpus} × {profile.gpu_memory_gib:g} GiB ({profile.name})"


def _count(report: GpuReport, usable: Sequence[Gpu], profile: GpuProfile, *, visible: str | None) -> CheckFinding:
    working = [gpu for gpu in usable if not faulty(gpu)]
    names = ", ".join(sorted({gpu.name for gpu in working})) or "none"
    found = f"{len(usable)} ({names})"
    if len(working) < len(usable):
        found += f", {len(usable) - len(working)} of them out of order"
    if visible is not None and len(usable) < len(report.gpus):
        found += f"; CUDA_VISIBLE_DEVICES={visible} of {len(report.gpus)}"
    enough = len(working) >= profile.num_gpus
    return CheckFinding(
        name="GPUs",
        found=found,
        wanted=_wanted(profile),
        verdict="ok" if enough else "failure",
        advice="" if enough else f"{_nearest(working)}, repair the others, or widen CUDA_VISIBLE_DEVICES.",
    )


def _nearest(working: Sequence[Gpu]) -> str:
    """The shipped profile with the most GPUs, and of those the largest, that the cards fit."""
    fitting = [
        profile
        for profile in shipped_profiles()
        if 0 < profile.num_gpus <= sum(is_large_enough(gpu, profile.gpu_memory_gib) for gpu in working)
    ]
    best = max(fitting, key=lambda profile: (profile.num_gpus, profile.gpu_memory_gib), default=None)
    if best is None:
        return "Choose a profile for fewer or smaller GPUs (gpu_profile)"
    return f"Choose a profile for fewer GPUs (`--profile {best.name}` fits those that work)"


def _gpu(gpu: Gpu, profile: GpuProfile, ours: Collection[int], leased: Mapping[str, str]) -> CheckFinding:
    kept = _kept(gpu, ours) or _leased(gpu, leased)
    hindrance = faulty(gpu) or _too_small(gpu, profile) or (None if kept else in_use(gpu)) or _sliced(gpu, profile)
    warning = kept or degraded(gpu) or _of_unknown_size(gpu, profile)
    free = "memory unknown"
    if gpu.memory_total_mib is not None and gpu.memory_used_mib is not None:
        free = f"{gpu.memory_total_mib - gpu.memory_used_mib}/{gpu.memory_total_mib} MiB free"
    temperature = "" if gpu.temperature_c is None else f", {gpu.temperature_c} °C"
    limit = "" if gpu.power_limit_w is None else f", {gpu.power_limit_w:.0f} W at most"
    found, advice = hindrance or warning or (f"{gpu.name}, {free}{temperature}{limit}", "")
    return CheckFinding(
        name=f"GPU {gpu.index}",
        found=found,
        wanted=f"healthy, free, {profile.gpu_memory_gib:g} GiB",
        verdict="failure" if hindrance else "warning" if warning else "ok",
        advice=advice,
    )


def _left_out(row: CheckFinding) -> CheckFinding:
    """The row of a faulty card that the run does not need."""
    return row.model_copy(update={"verdict": "warning", "wanted": "left out; the run does not need it"})


def _links(gpus: Sequence[Gpu], profile: GpuProfile) -> Iterator[CheckFinding]:
    """How the run's GPUs are connected; P2P over NVLink alone is no P2P on boards without NVLink."""
    if profile.num_gpus < 2 or any(gpu.num_links is None for gpu in gpus):
        return
    without = [str(gpu.index) for gpu in gpus if not gpu.num_links]
    counts = "/".join(sorted({str(gpu.num_links) for gpu in gpus if gpu.num_links}))
    found = f"NVLink, {counts} links a card"
    if without:
        found = "PCIe, no NVLink" if len(without) == len(gpus) else f"NVLink, but GPU {', '.join(without)} has none"
    harms = bool(without) and profile.nccl.p2p_level == "NVL"
    advice = "p2p_level: NVL turns P2P over PCIe off, so all goes over shared memory: remove it from the profile."
    uneven = 0 < len(without) < len(gpus)
    yield CheckFinding(
        name="links of the GPUs",
        found=found,
        wanted="any" if not harms else "NVLink, for nccl.p2p_level: NVL",
        verdict="warning" if harms or uneven else "ok",
        advice=advice if harms else "Look at `nvidia-smi topo -m`: a bridge may be loose." if uneven else "",
    )


def _too_small(gpu: Gpu, profile: GpuProfile) -> tuple[str, str] | None:
    if gpu.memory_total_mib is None or is_large_enough(gpu, profile.gpu_memory_gib):
        return None
    return (
        f"GPU {gpu.index}: {memory_text(gpu)}",
        "Choose a profile for smaller cards (gpu_profile), or write one with a smaller max_per_device_batch_size.",
    )


def _of_unknown_size(gpu: Gpu, profile: GpuProfile) -> tuple[str, str] | None:
    """A warning for a card whose memory is not reported: the profile is believed (`auto` chooses no such card)."""
    if gpu.memory_total_mib is not None:
        return None
    return (
        f"GPU {gpu.index}: {memory_text(gpu)}",
        f"The {profile.gpu_memory_gib:g} GiB of the profile are believed: name one that leaves room for the system.",
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
