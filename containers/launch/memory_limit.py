"""How much memory a stage may take: what its profile says, else the machine's less a share for all that is no stage.

A stage without a limit that eats memory takes the servers and the orchestrator with it: the kernel kills whom it likes.
"""

from dataclasses import dataclass

from containers.contracts.hardware import GIB, GpuProfile
from containers.contracts.registries import RuntimeName
from containers.formatting import size
from containers.launch.host_limits import Memory, read_machine_memory, read_memory

# MLflow takes 0.4 GiB after its start and was seen with 1 GiB, Prefect 0.2 and grows with the runs in its database, the
# orchestrator of a run 0.2 (proportional set size, prefect 3.8.8, mlflow 3.17). The rest is for what they grow by.
_SERVERS_BYTES = 2 * GIB
# Kernel, Docker, a shell: more on larger machines, whose kernel keeps more tables.
_SYSTEM_FRACTION = 0.05
# On a small machine the stage comes first: it was asked for, and the servers may run elsewhere.
_LEAST_FRACTION = 0.5
_FOR_WHOM = "servers, orchestrator and system"


@dataclass(frozen=True)
class MemoryLimit:
    """Attributes: limit_bytes: 0 is none; reason: where it comes from, as the end of a sentence."""

    limit_bytes: int
    reason: str


def memory_limit(
    profile: GpuProfile,
    *,
    machine_bytes: int,
    runtime: RuntimeName = "docker",
    can_limit: bool = True,
) -> MemoryLimit:
    """The limit of a stage on this machine. Pure.

    Args:
        machine_bytes: as `machine_memory` gives it; 0 where nobody asked.
        can_limit: whether the Docker daemon can limit memory; one that cannot makes other containers than asked for.

    Example: 23.5 GiB give 23.5 − 2 − 5 % = 20.3 GiB, and 2 GiB give the half of them.
    """
    setting = f"host_memory_gib of profile `{profile.name}`"
    wanted = profile.host_memory_gib
    if wanted == "unlimited":
        return MemoryLimit(0, f"{setting}: unlimited, so the whole machine")
    if wanted is not None:
        unheeded = ", which the process runtime does not enforce" if runtime == "process" else ""
        return MemoryLimit(int(wanted * GIB), f"{setting}: {wanted:g} GiB{unheeded}")
    if runtime == "process":
        return MemoryLimit(0, f"{setting} is not set, and the process runtime enforces no limit")
    if not can_limit:
        return MemoryLimit(0, f"{setting} is not set, and this Docker daemon cannot limit memory")
    if not machine_bytes:
        return MemoryLimit(0, f"{setting} is not set, and the memory of the machine is not known")
    return _derived(machine_bytes, setting)


def memory_for(profile: GpuProfile, runtime: RuntimeName) -> Memory:
    """What a stage can have here: of this process's control groups, unless a profile names a limit for containers.

    Containers are the daemon's, and not necessarily of our groups: who names a limit says that there is so much.
    """
    is_named = runtime == "docker" and profile.host_memory_gib is not None
    return read_machine_memory() if is_named else read_memory()


def machine_memory(docker_bytes: int) -> int:
    """Bytes that containers and servers share: the smaller of the daemon's machine and this process's own limit.

    Args:
        docker_bytes: memory of the daemon's machine, which can be a virtual one; 0 where no daemon was asked.
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
