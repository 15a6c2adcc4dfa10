"""Measurements of the connections between the ranks of a stage, taken before training."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen

# Inside a stage's work folder.
COLLECTIVES_FILE = "collectives.json"
# Files that torch writes there for each rank after a collective time-out (TORCH_NCCL_DEBUG_INFO_TEMP_FILE).
FLIGHT_RECORDS = "nccl_trace_rank_*"


class AllReduce(Frozen):
    """All-reduces of one size."""

    size_bytes: int = Field(ge=1)
    median_s: float = Field(ge=0)
    bus_bytes_per_s: float = Field(
        ge=0, description="2 (n - 1) / n × size / time: what each of n ranks sends and receives in a ring"
    )


class Collectives(Frozen):
    """`collectives.json`: transports between the ranks, their speed, and their use of /dev/shm."""

    backend: Literal["gloo", "nccl"]
    num_processes: int = Field(ge=2)
    transports: tuple[str, ...] = Field((), description="As NCCL names them: `P2P/CUMEM`, `SHM/direct`, `NET/Socket`")
    sizes: tuple[AllReduce, ...]
    shm_total_bytes: int = Field(ge=0, description="Size of /dev/shm")
    shm_used_bytes: int = Field(ge=0, description="Its peak use during the measurement, beyond the use before")
    duration_s: float = Field(ge=0)
