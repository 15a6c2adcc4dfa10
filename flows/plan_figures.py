"""The pieces of a plan: numbers that say what they are worth, and one stage's worth of them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from containers.contracts.hardware import BatchPlan, GpuProfile
from containers.contracts.names import StageName
from containers.schedule import ResolvedSchedule
from flows import estimates
from flows.config_errors import Mistake
from flows.plan_inputs import Count, DataSize, FoundShape, Origin
from flows.run_config import RunConfig

CachedWords = Callable[[StageName], str]


@dataclass(frozen=True)
class Figure:
    """A number that says what it is and what it is worth; `value` is None where nobody can know it yet."""

    name: str
    value: float | None
    unit: str
    origin: Origin
    note: str = ""


@dataclass(frozen=True)
class StagePlan:
    """One stage: what it will do and what that costs.

    Attributes:
        memory: parts on one device.
        host_memory: of all ranks together, outside their GPUs; None where nobody reckoned, for it is little.
    """

    stage: StageName
    cached: str
    batch: BatchPlan | None = None
    schedule: ResolvedSchedule | None = None
    figures: tuple[Figure, ...] = ()
    memory: tuple[Figure, ...] = ()
    host_memory: Figure | None = None
    disk: Figure | None = None
    time: Figure | None = None


@dataclass(frozen=True)
class Known:
    """What every stage's plan is made from."""

    config: RunConfig
    profile: GpuProfile
    data: DataSize
    model: FoundShape | None
    cached: CachedWords
    mistakes: list[Mistake] = field(default_factory=list)


def count_figure(name: str, count: Count | None, unit: str) -> Figure:
    """Figure of a count that may not be known yet."""
    return Figure(name, None, unit, "unknown") if count is None else Figure(name, count.value, unit, count.origin)


def disk_figure(count: float, *, note: str = "") -> Figure:
    """Figure of bytes written."""
    return Figure("disk", count, "bytes", "estimated", note)


def time_figure(seconds: float | None, *, note: str = "") -> Figure:
    """Figure of seconds for a stage, the start of its program included; None where nobody can know."""
    if seconds is None:
        return Figure("time", None, "s", "unknown", note)
    return Figure("time", estimates.START_SECONDS + seconds, "s", "estimated", note)
