"""Changes between two attempts at the same work, so that the next attempt fits."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.outcome import FailureKind

FallbackName = Literal[
    "smaller_batch", "gradient_checkpointing", "larger_shm", "no_nccl_shm", "diagnostics", "fewer_processes"
]


class LadderSettings(Frozen):
    """Whether and how often a stage that does not fit is tried again in another shape."""

    enabled: bool = Field(
        True,
        description="After a full GPU, a full /dev/shm or ranks that waited in vain, try the same work in another "
        "shape (`rlhf plan` says which) from the last checkpoint; false: fail at once, or try again unchanged",
    )
    max_fallbacks: int = Field(6, ge=1, le=20, description="Most changes of shape for one stage; then it fails")


class Fallback(Frozen):
    """One change, which holds for all later attempts. Global batch and steps stay the same.

    Only the value that the fallback changes is set.
    """

    name: FallbackName
    after: FailureKind
    change: str = Field(min_length=1, description="For users: `per-device batch 4 → 2, accumulation 7 → 14`")
    per_device_batch_size: int | None = Field(None, ge=1)
    num_processes: int | None = Field(None, ge=1)
    processes_before: int | None = Field(None, ge=1, description="Ranks of the checkpoints that may be resumed from")
    shm_size_gib: float | None = Field(None, gt=0)
