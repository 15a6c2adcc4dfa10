"""Test and measure the connections between ranks before training, by all-reduces of the sizes of gradient buckets.

The probe runs inside the stage, with its ranks, limits and variables, on the connections that training then uses. So a
setup that cannot work fails within seconds, before a model is loaded, and the measurement needs no second start.
"""

import ctypes
import logging
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

from containers.contracts.hardware import AllReduce, Collectives, GpuProfile
from containers.contracts.outcome import FailureKind
from containers.harness.errors import StageError

logger = logging.getLogger(__name__)

_MIB = 1024**2
# DistributedDataParallel sends gradients in buckets: a first of 1 MiB, the others of 25 MiB.
SIZES_BYTES = (1 * _MIB, 25 * _MIB)
_REPEATS = 5
# One all-reduce of 25 MiB takes milliseconds on GPUs, and below a second on two busy cores.
WAIT_S = 60
# Limit for making connections: that happens before the first wait begins, and NCCL waits for them forever.
_CONNECT_S = 180
_SAMPLE_S = 0.005
_SHM = "/dev/shm"  # noqa: S108 - the mount itself is what is measured
_VIA = re.compile(r"\bvia (P2P|SHM|NET)/(\w+)")


class RanksApartError(StageError):
    """The ranks do not reach each other."""

    kind = FailureKind.NCCL_TIMEOUT


class WrongSumError(StageError):
    """The ranks reach each other, but the data arrive changed."""

    kind = FailureKind.MISSING_PREREQUISITE


def measure_collectives(
    profile: GpuProfile, device: torch.device, *, sizes: Sequence[int] = SIZES_BYTES
) -> Collectives:
    """All-reduce each size over all ranks; return the measurements. Needs a process group; all ranks must call it.

    Args:
        sizes: bytes.

    Raises:
        RanksApartError: an all-reduce took more than a minute; names the setting to change.
        WrongSumError: the sum is wrong.
    """
    started = time.monotonic()
    output = _Output()
    with _limited(profile, output), _ShmUse() as shm, _nccl_speaks(device, output):
        measured = tuple(_measured(size, device, profile, output) for size in sizes)
        transports = transports_in(output.text)
    return Collectives(
        backend="nccl" if device.type == "cuda" else "gloo",
        num_processes=distributed.get_world_size(),
        transports=transports,
        sizes=measured,
        shm_total_bytes=shm.total_bytes,
        shm_used_bytes=shm.used_bytes,
        duration_s=time.monotonic() - started,
    )


def transports_in(text: str) -> tuple[str, ...]:
    """Return the transports that NCCL chose, each once, from its log (NCCL_DEBUG=INFO).

    Example: `Channel 00 : 0[1000] -> 1[24000] via SHM/direct/direct` gives `SHM/direct`.
    """
    return tuple(sorted({f"{way}/{how}" for way, how in _VIA.findall(text)}))


def setting_to_change(profile: GpuProfile, transports: tuple[str, ...]) -> str:
    """Return advice: the one setting to change if ranks do not reach each other."""
    if not profile.num_gpus:
        return "Ranks on a CPU connect over the loopback interface: check that `lo` is up, and no firewall blocks it"
    ways = {transport.partition("/")[0] for transport in transports}
    if "NET" in ways:
        return "Set nccl.socket_ifname in the GPU profile to the interface over which the ranks can reach each other"
    if ways == {"SHM"} or profile.nccl.p2p_disable:
        return "Raise shm_size_gib in the GPU profile; if that does not help, set nccl.shm_disable, which is slow"
    return "Set nccl.p2p_disable to true in the GPU profile: P2P hangs where ACS or the IOMMU is on"


@dataclass
class _Output:
    """NCCL's output during the probe, in its own file; no file without NCCL."""

    file: int | None = None

    @property
    def text(self) -> str:
        if self.file is None:
            return ""
        ctypes.CDLL(None).fflush(None)
        return os.pread(self.file, os.fstat(self.file).st_size, 0).decode(errors="replace")


def _measured(size_bytes: int, device: torch.device, profile: GpuProfile, output: _Output) -> AllReduce:
    num_processes = distributed.get_world_size()
    wanted = num_processes * (num_processes + 1) / 2
    durations_s = []
    for _ in range(1 + _REPEATS):
        values = torch.full((size_bytes // 4,), distributed.get_rank() + 1.0, device=device)
        started = time.monotonic()
        _all_reduce(values, profile, output)
        durations_s.append(time.monotonic() - started)
        if not bool((values == wanted).all()):
            raise WrongSumError(
                f"An all-reduce of {size_bytes // _MIB} MiB over {num_processes} ranks gave wrong sums, so every "
                f"gradient would be wrong. {setting_to_change(profile, transports_in(output.text))}."
            )
    median_s = statistics.median(durations_s[1:])
    sent_bytes = 2 * (num_processes - 1) / num_processes * size_bytes
    return AllReduce(size_bytes=size_bytes, median_s=median_s, bus_bytes_per_s=sent_bytes / max(median_s, 1e-9))


def _all_reduce(values: torch.Tensor, profile: GpuProfile, output: _Output) -> None:
    # Not `distributed.all_reduce`: it has no own time-out, so an operation without an answer would delay the end of the
    # process until the group's time-out.
    options = distributed.AllreduceOptions()
    options.timeout = timedelta(seconds=WAIT_S)
    try:
        work = distributed.distributed_c10d._get_default_group().allreduce([values], options)
        # NCCL's own wait polls once a millisecond, in which NVLink can all-reduce 25 MiB several times.
        limit = time.monotonic() + WAIT_S
        while values.is_cuda and not work.is_completed() and time.monotonic() < limit:
            pass
        work.wait(options.timeout)
        if values.is_cuda:
            torch.cuda.synchronize(values.device)
    except RuntimeError as error:
        raise RanksApartError(_apart(profile, output, f"{type(error).__name__}: {error}")) from error


def _apart(profile: GpuProfile, output: _Output, what: str) -> str:
    return (
        f"Before the training, {profile.num_processes} ranks of profile `{profile.name}` could not add up "
        f"{SIZES_BYTES[-1] // _MIB} MiB: {what.strip().splitlines()[0]}. "
        f"{setting_to_change(profile, transports_in(output.text))}."
    )


@contextmanager
def _limited(profile: GpuProfile, output: _Output) -> Iterator[None]:
    """End the process if making connections takes too long: nothing inside it can be interrupted."""

    def give_up() -> None:
        os.write(2, f"{_apart(profile, output, f'no connection within {_CONNECT_S} s')}\n".encode())
        os._exit(1)

    timer = threading.Timer(_CONNECT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _nccl_speaks(device: torch.device, output: _Output) -> Iterator[None]:
    """Make NCCL report its transports, and keep that out of the log unless something goes wrong.

    NCCL reads NCCL_DEBUG once, with its first connection, and writes to the process's standard output.
    """
    if device.type != "cuda":
        yield
        return
    sys.stdout.flush()
    kept, output.file = os.dup(1), os.memfd_create("nccl")
    level = os.environ.get("NCCL_DEBUG", "WARN")
    if level not in ("INFO", "TRACE"):
        os.environ["NCCL_DEBUG"] = "INFO"
    os.dup2(output.file, 1)
    went_well = False
    try:
        yield
        went_well = True
    finally:
        text = output.text
        os.dup2(kept, 1)
        os.close(kept)
        os.close(output.file)
        output.file = None
        os.environ["NCCL_DEBUG"] = level
        _read_level_again()
        if not went_well or level in ("INFO", "TRACE"):
            logger.info("%s", text)


def _read_level_again() -> None:
    """Have NCCL read NCCL_DEBUG again, from 2.24 on; an older one will report each connection of the training."""
    with suppress(OSError, AttributeError):
        # By the name under which torch has loaded it.
        ctypes.CDLL("libnccl.so.2").ncclResetDebugInit()


@dataclass
class _ShmUse:
    """The peak use of /dev/shm during the block, minus its use before."""

    total_bytes: int = 0
    used_bytes: int = 0
    _before: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "_ShmUse":
        self.total_bytes, self._before = _shm_size_and_use()
        threading.Thread(target=self._sample, name="shm-use", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._look()
        self._ended.set()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self.used_bytes = max(self.used_bytes, _shm_size_and_use()[1] - self._before)


def _shm_size_and_use() -> tuple[int, int]:
    if not Path(_SHM).is_dir():
        return 0, 0
    stats = os.statvfs(_SHM)
    return stats.f_frsize * stats.f_blocks, stats.f_frsize * (stats.f_blocks - stats.f_bfree)
