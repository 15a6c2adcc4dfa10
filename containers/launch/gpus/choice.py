"""Which profile of a ladder the GPUs of this machine can carry now, and why; pure.

A profile fits where enough GPUs are free, healthy and large enough, and where it divides every global batch of the run.
Where none fits the free GPUs, the healthy ones count: the stages then wait for the other run that has them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from containers.contracts.hardware import GpuProfile
from containers.launch.gpus.health import MISSING
from containers.launch.gpus.inventory import Gpu, GpuReport
from containers.launch.gpus.verdicts import degraded, faulty, in_use, is_healthy, is_large_enough


class NoProfileFitsError(Exception):
    """There are GPUs, and no profile of the ladder can be run on them; the message says why."""


@dataclass(frozen=True)
class ProfileChoice:
    """The profile, and why it was taken."""

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
    """The first profile that fits.

    Args:
        ladder: profiles, the most wanted first.
        without_gpu: for a machine that has none.
        report: what nvidia-smi said.
        usable: the GPUs of it that this user lets programs see.
        leased: GPU UUID → which run has it.
        divides: why the run's batches cannot be cut over the profile's ranks; empty where they can.

    Raises:
        NoProfileFitsError: there are GPUs, and none of them can be used.
    """
    if report.problem == MISSING or "reports no devices" in report.problem:
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
                passed_over.append(f"{profile.name} not: {indivisible or _too_few(fitting, profile)}")
                continue
            return ProfileChoice(profile, _reason(fitting, profile, words, [*passed_over, *left_out]))
    raise NoProfileFitsError(
        f"No profile fits the {len(usable)} GPU(s) that may be used here. {'. '.join([*passed_over, *left_out])}. "
        f"Name a profile (for example `{without_gpu.name}`), or repair the GPUs."
    )


def _reason(fitting: Sequence[Gpu], profile: GpuProfile, words: str, remarks: Sequence[str]) -> str:
    chosen = ", ".join(str(gpu.index) for gpu in fitting)
    names = ", ".join(sorted({gpu.name for gpu in fitting}))
    which = f"{len(fitting)} GPU(s) ({chosen}: {names}) are {words}"
    return ". ".join([f"{which}; {profile.name} takes {profile.num_gpus}", *remarks])


def _too_few(fitting: Sequence[Gpu], profile: GpuProfile) -> str:
    return f"{len(fitting)} of {profile.num_gpus} GPUs with {profile.gpu_memory_gib:g} GiB"


def _left_out(usable: Sequence[Gpu], leased: Mapping[str, str]) -> list[str]:
    """Why each GPU that does not count does not, in words."""
    found = []
    for gpu in usable:
        if not is_healthy(gpu):
            trouble = faulty(gpu) or degraded(gpu)
            found.append(trouble[0] if trouble else f"GPU {gpu.index}: not healthy")
        elif gpu.uuid in leased:
            found.append(f"GPU {gpu.index}: {leased[gpu.uuid]} has it")
        elif (held := in_use(gpu)) is not None:
            found.append(held[0])
    return found
