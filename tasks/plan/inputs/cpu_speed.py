"""Speed of this machine's CPU, and its memory, for a plan."""

import functools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from containers.contracts.hardware import GpuProfile
from containers.contracts.registries import AUTO, RuntimeKind, planned_runtime
from containers.formatting import size
from containers.host.control_groups import Memory
from containers.launch.host_limits import MemoryLimit, memory_for, memory_limit
from tasks.plan import estimates

# Speed of one thread, by the program below, of the machine that the plan's seconds were measured on.
REFERENCE_GFLOPS = 95.0
# Time to start a program that imports torch and TRL on that machine while it was idle.
_IDLE_START_SECONDS = 6.0
_PATIENCE_S = 10.0
_SIDE = 512
# Long enough to show what share of a busy CPU is left.
_SECONDS = 0.3
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PROGRAM = f"""
import time
import numpy
left = numpy.ones(({_SIDE}, {_SIDE}), dtype=numpy.float32)
left @ left
start, worked, times = time.perf_counter(), time.process_time(), 0
while time.perf_counter() - start < {_SECONDS}:
    left @ left
    times += 1
print(times * 2 * {_SIDE}**3 / 1e9, time.perf_counter() - start, time.process_time() - worked)
"""


@dataclass(frozen=True)
class CpuSpeed:
    """Speed of the CPU for one training rank.

    Attributes:
        gflops: 10⁹ operations of a float32 matrix product in a second that the profile's threads work; None: not
            measured.
        num_threads: of a rank.
        share: of the CPU, left to them by other work, in (0, 1].
        crowding: how many times more threads all ranks have than there are cores; 1 if there are enough cores.
    """

    gflops: float | None = None
    num_threads: int = 1
    share: float = 1.0
    crowding: float = 1.0

    @property
    def slowness(self) -> float:
        """How many times longer everything takes than on the machine that the seconds were measured on."""
        if self.gflops is None:
            return 1.0
        return REFERENCE_GFLOPS * self.num_threads / self.gflops * self.crowding / self.share

    @property
    def start_seconds(self) -> float:
        """How long the start of a stage's program takes."""
        return estimates.START_SECONDS if self.gflops is None else _IDLE_START_SECONDS * self.slowness

    @property
    def short_words(self) -> str:
        """The note of a figure of seconds."""
        return "on an idle machine" if self.gflops is None else "at this machine's speed just now"

    @property
    def words(self) -> str:
        """Where the seconds come from, and how reliable they are."""
        if self.gflops is None:
            return (
                "seconds on a processor are those of an idle machine that multiplies matrices at "
                f"{REFERENCE_GFLOPS:.0f} GFLOP/s a thread; not measured on this machine, and other work beside it can "
                "make them 4 times as many"
            )
        return (
            f"{self.num_threads} thread(s) multiply matrices at {self.gflops:.0f} GFLOP/s here, and at "
            f"{REFERENCE_GFLOPS * self.num_threads:.0f} on the machine that seconds were measured on; other work "
            f"leaves them {self.share:.0%} of the processor just now: {self.slowness:.2g} times these seconds, and "
            f"{self.slowness * self.share:.2g} times where nothing else works"
        )


NOT_MEASURED = CpuSpeed()


def measured_cpu_speed(profile: GpuProfile) -> CpuSpeed:
    """Measure the speed of this machine for a profile without GPUs, in half a second; not for one with GPUs.

    A separate program measures it, since its number of threads can be set. Other work on the machine slows it down, as
    it will slow the run.
    """
    return NOT_MEASURED if profile.num_gpus else _measured(profile.num_threads, profile.num_processes)


@functools.cache
def _measured(num_threads: int, num_processes: int) -> CpuSpeed:
    environment = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(num_threads))}
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=True,
        )
        operations, seconds, worked = (float(word) for word in ran.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return NOT_MEASURED
    if not all(math.isfinite(number) and number > 0 for number in (operations, seconds, worked)):
        return NOT_MEASURED
    share = min(1.0, worked / (seconds * num_threads))
    crowding = max(1.0, num_threads * num_processes / (os.cpu_count() or 1))
    return CpuSpeed(operations / worked * num_threads, num_threads, share, crowding)


@dataclass(frozen=True)
class HostMemory:
    """Memory of this machine or control group, and what a stage may take of it.

    Attributes:
        limit: of the container of a stage; the process runtime has none.
        is_for_docker: whether it holds in Docker only, while `auto` has not chosen a runtime yet.
    """

    memory: Memory
    limit: MemoryLimit
    is_for_docker: bool = False

    @property
    def words(self) -> str:
        """Free and total memory, and the limit with its reason. The daemon's machine may have less: see the check."""
        where = "in Docker, " if self.is_for_docker else ""
        found = f"{size(self.memory.available_bytes)} free of {size(self.memory.total_bytes)}"
        return f"{found}; {where}{self.limit.reason}"

    @property
    def most_bytes(self) -> int:
        """Maximum memory of a stage here."""
        return min(self.memory.total_bytes, self.limit.limit_bytes or self.memory.total_bytes)


def read_host_memory(profile: GpuProfile, *, kind: RuntimeKind) -> HostMemory:
    """Memory of this machine for a run of that runtime; `auto` counts as Docker, which has the smaller limit."""
    runtime = planned_runtime(kind)
    memory = memory_for(profile, runtime)
    limit = memory_limit(profile, machine_bytes=memory.total_bytes, runtime=runtime)
    return HostMemory(memory, limit, is_for_docker=kind == AUTO)


def short_memory(host: HostMemory, *, needed_bytes: float) -> Iterator[str]:
    """A warning if the largest stage needs more than it can have; the run's system check then refuses."""
    if needed_bytes > host.most_bytes:
        yield (
            f"memory: about {size(needed_bytes)} are estimated for the largest stage, and here it can have "
            f"{size(host.most_bytes)} of {size(host.memory.total_bytes)}: {host.limit.reason}."
        )
