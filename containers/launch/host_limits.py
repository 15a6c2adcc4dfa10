"""Cores and memory of the host, and the memory limit of a stage."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from containers.contracts.hardware import GIB, GpuProfile
from containers.contracts.registries import RuntimeName, capabilities
from containers.formatting import size
from containers.host.control_groups import Memory, available_cpus, group_memory

_ROOT = Path("/")
_SHM = "/dev/shm"  # noqa: S108 - the mount itself is what is measured
# MLflow takes 0.4 GiB after its start and up to 1 GiB later; Prefect 0.2, more with more runs in its database; the
# orchestrator of a run 0.2 (proportional set size, prefect 3.8.8, mlflow 3.17). The rest is for their growth.
_SERVERS_BYTES = 2 * GIB
# Kernel, Docker, a shell; the kernel of a larger machine keeps more tables.
_SYSTEM_FRACTION = 0.05
# On a small machine the stage comes before the servers, which may run elsewhere.
_LEAST_FRACTION = 0.5
_FOR_WHOM = "servers, orchestrator and system"


def read_memory(*, root: Path = _ROOT) -> Memory:
    """Memory of the host, or what the control groups of this process allow where that is less.

    Args:
        root: of the file system in which the control groups are looked up.
    """
    host, group = read_machine_memory(), group_memory(root=root)
    if group is None:
        return host
    return Memory(
        total_bytes=min(host.total_bytes, group.total_bytes),
        available_bytes=min(host.available_bytes, group.available_bytes),
    )


def read_machine_memory() -> Memory:
    """Memory of the whole host, without the limits of this process."""
    host = psutil.virtual_memory()
    return Memory(total_bytes=host.total, available_bytes=host.available)


def usable_cores() -> int:
    """Whole cores that this process may use, at least one; two threads of one core count once."""
    cpus = available_cpus()
    return max(1, int(min(cpus, psutil.cpu_count(logical=False) or cpus)))


def shared_memory() -> tuple[int, int]:
    """Size and free bytes of the host's /dev/shm; zeros where it is not mounted."""
    try:
        stats = os.statvfs(_SHM)
    except OSError:
        return 0, 0
    return stats.f_frsize * stats.f_blocks, stats.f_frsize * stats.f_bavail


@dataclass(frozen=True)
class MemoryLimit:
    """Attributes: limit_bytes: 0 is no limit; reason: where it comes from, as the end of a sentence."""

    limit_bytes: int
    reason: str


def memory_limit(
    profile: GpuProfile,
    *,
    machine_bytes: int,
    runtime: RuntimeName = "docker",
    can_limit: bool = True,
) -> MemoryLimit:
    """The memory limit of a stage on this machine. Pure.

    Args:
        machine_bytes: result of `machine_memory`; 0 where it was not measured.
        can_limit: whether the Docker daemon can limit memory; else its containers differ from the request.

    Example: 23.5 GiB give 23.5 − 2 − 5 % = 20.3 GiB, and 2 GiB give half, 1 GiB.
    """
    setting, can = f"host_memory_gib of profile `{profile.name}`", capabilities(runtime)
    wanted = profile.host_memory_gib
    if wanted == "unlimited":
        return MemoryLimit(0, f"{setting}: unlimited, so the whole machine")
    if wanted is not None:
        unheeded = "" if can.enforces_memory else f", which the {runtime} runtime does not enforce"
        return MemoryLimit(int(wanted * GIB), f"{setting}: {wanted:g} GiB{unheeded}")
    if not can.enforces_memory:
        return MemoryLimit(0, f"{setting} is not set, and the {runtime} runtime enforces no limit")
    if not can_limit:
        return MemoryLimit(0, f"{setting} is not set, and this Docker daemon cannot limit memory")
    if not machine_bytes:
        return MemoryLimit(0, f"{setting} is not set, and the memory of the machine is not known")
    return _derived(machine_bytes, setting)


def memory_for(profile: GpuProfile, runtime: RuntimeName) -> Memory:
    """Memory that a stage can use: of this process's control groups, or of the machine if the profile has a limit.

    Containers belong to the daemon, not necessarily to our groups; a profile's limit means that the machine has it.
    """
    is_named = capabilities(runtime).enforces_memory and profile.host_memory_gib is not None
    return read_machine_memory() if is_named else read_memory()


def machine_memory(docker_bytes: int) -> int:
    """Bytes that containers and servers share: the smaller of the daemon's machine and this process's limit.

    Args:
        docker_bytes: memory of the daemon's machine, which can be a virtual one; 0 where it is not known.
    """
    own_bytes = read_memory().total_bytes
    return min(own_bytes, docker_bytes) if docker_bytes else own_bytes


def _derived(machine_bytes: int, setting: str) -> MemoryLimit:
    share = _SERVERS_BYTES + int(_SYSTEM_FRACTION * machine_bytes)
    least = int(_LEAST_FRACTION * machine_bytes)
    limit, machine, kept = max(machine_bytes - share, least), size(machine_bytes), f"{size(share)} for {_FOR_WHOM}"
    how = (
        f", half of the {machine} of this machine, since {kept} would leave less"
        if limit == least
        else f" from the {machine} of this machine less {kept}"
    )
    return MemoryLimit(limit, f"{setting} is not set; derived {size(limit)}{how}")
