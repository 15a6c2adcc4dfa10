"""What every runtime is given and gives back, and the errors of a launch that never became a run.

LaunchError                      the stage's program was not started; `kind` says what that means for the run
├── DaemonUnreachableError       no Docker daemon answers, or it stopped answering
├── DaemonInfrastructureError    the daemon answers and its own machinery is broken (bridge gone, disk, shim)
├── ImageMissingError            the stage image is not on this machine
├── ImageChangedError            the image's tag points to another image than the spec's digest
├── InputUnusableError           an input is missing, unreadable inside, or a link that leads out of the mount
├── NameTakenError               another live container works on the same key
├── GpuUnavailableError          the GPUs cannot be had: gone, broken, or not handed out by the daemon
└── CreateRefusedError           the daemon refused the container for any other reason
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from containers.contracts.outcome import FailureKind
from containers.contracts.registries import RuntimeName
from containers.contracts.spec import StageSpec

STAGE_LOG_FILE = "stage.log"


class LaunchError(Exception):
    """Base: what, why, and what to do."""

    kind = FailureKind.MISSING_PREREQUISITE


class DaemonUnreachableError(LaunchError):
    """No Docker daemon answers."""


class DaemonInfrastructureError(LaunchError):
    """The daemon's own machinery is broken; starting again can help."""

    kind = FailureKind.CONTAINER_LOST


class ImageMissingError(LaunchError):
    """The stage image is not on this machine."""


class ImageChangedError(LaunchError):
    """The image is not the one that the spec was made for."""


class InputUnusableError(LaunchError):
    """An input cannot be mounted, or could not be read inside."""


class NameTakenError(LaunchError):
    """Another container works on the same key."""


class GpuUnavailableError(LaunchError):
    """The GPUs that the profile asks for cannot be had."""


class CreateRefusedError(LaunchError):
    """The daemon refused the container."""


def _ignore_line(line: str) -> None:
    """For callers that read stage.log afterwards."""


def _never() -> bool:
    return False


def _no_tick() -> None:
    """For callers that tail no events."""


ENTRY_MODULE = "containers.stages.entry"


@dataclass(frozen=True)
class LaunchRequest:
    """One attempt at one stage.

    Attributes:
        spec: with host paths; the runtime writes the spec that the stage reads, with the paths that the stage sees.
        spec_folder: host folder of spec.json and stage.log; the stage can read it, never write.
        work_folder: host folder; the one that the stage may write.
        image: name or id of the stage image; None for the process runtime.
        labels: put on the container in addition to the runtime's own.
        on_line: called in the caller's thread with each log line, live; floods and progress bars are thinned out.
        should_stop: polled a few times a second; True stops the stage in good order.
        on_tick: called about once a second, and once more after the end.
        program: the module that is run, with the path of its spec as argument.
        gpu_ids: indices or UUIDs of the GPUs to use; empty: any `profile.num_gpus` of them.
    """

    spec: StageSpec
    spec_folder: Path
    work_folder: Path
    image: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    on_line: Callable[[str], None] = _ignore_line
    should_stop: Callable[[], bool] = _never
    on_tick: Callable[[], None] = _no_tick
    program: str = ENTRY_MODULE
    gpu_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class StageExit:
    """How the program ended. What that means is decided in `failure.py`.

    Attributes:
        exit_code: as a shell shows it, 128 + n for a death by signal n; None if it was never learnt.
        oom_killed: the kernel killed the program or a child of it for memory; the exit code can still be 1 or 3.
        lost: the container vanished, could not be observed, or outlived SIGKILL.
        state: bounded facts for the evidence: Docker's State, or resource usage.
        stalled: it gave no sign of life for too long, and was killed.
    """

    exit_code: int | None
    oom_killed: bool
    timed_out: bool
    cancelled: bool
    signal: int | None
    duration_s: float
    log_tail: tuple[str, ...]
    container_id: str
    image_digest: str
    lost: bool
    state: Mapping[str, str]
    stalled: bool = False


class StageRuntime(Protocol):
    """Starts a stage's program, watches it to its end, and leaves nothing behind."""

    @property
    def name(self) -> RuntimeName:
        """The value of `StageSpec.runtime`."""

    def run(self, launch: LaunchRequest) -> StageExit:
        """The program's end; when this returns or raises, nothing of the program is alive.

        Raises:
            LaunchError: the program was not started.
        """
