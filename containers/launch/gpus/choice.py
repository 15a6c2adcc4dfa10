"""Choose the first profile of a list that fits the GPUs of this machine now, with the reason; pure.

A profile fits if enough GPUs are free, healthy and large enough, and if it divides every global batch of the run.
If none fits the free GPUs, all healthy ones count: the stages then wait for the run that holds them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from containers.contracts.hardware import GpuProfile
from containers.launch.gpus.cards import Gpu, GpuReport
from containers.launch.gpus.verdicts import degraded, faulty, in_use, is_healthy, is_large_enough, memory_text


class NoProfileFitsError(Exception):
    """This machine has GPUs, but no profile of the list fits them; the message says why."""


@dataclass(frozen=True)
class ProfileChoice:
    """The profile, and why it was chosen."""

    profile: GpuProfile
    reason: str


def choose_profile(
    ladder: Sequence[GpuProfile],
    without_gpu: GpuProfile,
    report: GpuReport,
    usable: tuple[Gpu, ...],
    *,
    leased: Mapping[str, str],
    divides: Callable[[GpuProfile], str] = lambda profile: "",
) -> ProfileChoice:
    """Return the first profile that fits.

    Args:
        ladder: profiles, the preferred one first.
        without_gpu: the profile for a machine without GPUs.
        report: the answer of the driver.
        usable: the GPUs in `report` that CUDA_VISIBLE_DEVICES lets programs use.
        leased: GPU UUID → which run holds it.
        divides: returns why the run's batches cannot be divided over the profile's ranks; empty where they can.

    Raises:
        NoProfileFitsError: the GPUs cannot be read, or no profile fits them.
    """
    if report.has_none:
        return ProfileChoice(without_gpu, f"{report.problem}, so no GPU is used")
    if report.problem:
        raise NoProfileFitsError(f"The GPUs of this machine cannot be read: {report.problem}. {report.advice}")
    healthy = [gpu for gpu in usable if is_healthy(gpu)]
    free = [gpu for gpu in healthy if in_use(gpu) is None and gpu.uuid not in leased]
    left_out = _left_out(usable, leased)
    for gpus, words in ((free, "free"), (healthy, "healthy but not all free, so stages wait for them")):
        passed_over = []
        for profile in ladder:
            fitting = [gpu for gpu in gpus if is_large_enough(gpu, profile.gpu_memory_gib)]
            indivisible = divides(profile) if len(fitting) >= profile.num_gpus else ""
            if len(fitting) < profile.num_gpus or indivisible:
                too_few = f"{len(fitting)} of {profile.num_gpus} GPUs with {profile.gpu_memory_gib:g} GiB"
                passed_over.append(f"{profile.name} not: {indivisible or too_few}")
                continue
            return ProfileChoice(profile, _reason(fitting, profile, words, [*passed_over, *left_out]))
    raise NoProfileFitsError(
        f"No profile fits the {len(usable)} GPU(s) that programs may use here. {'. '.join([*passed_over, *left_out])}. "
        f"Name a profile (for example `{without_gpu.name}`), or repair the GPUs."
    )


def _reason(fitting: Sequence[Gpu], profile: GpuProfile, words: str, remarks: Sequence[str]) -> str:
    chosen = ", ".join(str(gpu.index) for gpu in fitting)
    names = ", ".join(sorted({gpu.name for gpu in fitting}))
    which = f"{len(fitting)} GPU(s) ({chosen}: {names}) are {words}"
    return ". ".join([f"{which}; {profile.name} takes {profile.num_gpus}", *remarks])


def _left_out(usable: Sequence[Gpu], leased: Mapping[str, str]) -> list[str]:
    """A reason for each GPU that does not count."""
    found = []
    for gpu in usable:
        if not is_healthy(gpu) and (trouble := faulty(gpu) or degraded(gpu)):
            found.append(trouble[0])
        elif gpu.uuid in leased:
            found.append(f"GPU {gpu.index}: {leased[gpu.uuid]} has it")
        elif (held := in_use(gpu)) is not None:
            found.append(held[0])
        elif gpu.memory_total_mib is None:
            found.append(f"GPU {gpu.index}: {memory_text(gpu)}")
    return found
