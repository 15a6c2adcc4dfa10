"""What a plan says of memory outside GPUs: what this machine has, what a stage may take, and where it is short."""

from collections.abc import Iterator
from dataclasses import dataclass

from containers.contracts.hardware import GpuProfile
from containers.contracts.registries import RuntimeKind, RuntimeName
from containers.formatting import size
from containers.launch.host_limits import Memory
from containers.launch.memory_limit import MemoryLimit, memory_for, memory_limit


@dataclass(frozen=True)
class HostMemory:
    """Memory of this machine or control group, and what a stage may take of it.

    Attributes:
        limit: of the container of a stage; without one in the process runtime.
        is_for_docker: whether it holds in Docker only, and the run does not say yet what it takes.
    """

    memory: Memory
    limit: MemoryLimit
    is_for_docker: bool = False

    @property
    def words(self) -> str:
        """What there is, and the limit with its reason. The daemon's machine may have less; the check asks it."""
        where = "in Docker, " if self.is_for_docker else ""
        found = f"{size(self.memory.available_bytes)} free of {size(self.memory.total_bytes)}"
        return f"{found}; {where}{self.limit.reason}"

    @property
    def most_bytes(self) -> int:
        """What a stage can have at most here."""
        return min(self.memory.total_bytes, self.limit.limit_bytes or self.memory.total_bytes)


def read_host_memory(profile: GpuProfile, *, kind: RuntimeKind) -> HostMemory:
    """This machine as a run of that runtime would use it; `auto` is taken for Docker, which has the smaller limit."""
    runtime: RuntimeName = "process" if kind == "process" else "docker"
    memory = memory_for(profile, runtime)
    limit = memory_limit(profile, machine_bytes=memory.total_bytes, runtime=runtime)
    return HostMemory(memory, limit, is_for_docker=kind == "auto")


def short_memory(host: HostMemory, *, needed_bytes: float) -> Iterator[str]:
    """A warning where the largest stage needs more than it can have; the system check of the run refuses then."""
    if needed_bytes > host.most_bytes:
        yield (
            f"memory: about {size(needed_bytes)} are estimated for the largest stage, and here it can have "
            f"{size(host.most_bytes)} of {size(host.memory.total_bytes)}: {host.limit.reason}."
        )
