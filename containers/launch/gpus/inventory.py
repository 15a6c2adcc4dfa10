"""Read the GPUs of this machine and their processes from nvidia-smi; every unusable answer becomes a reason."""

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

from containers.launch.gpus.health import (
    KERNEL_LOG,
    Health,
    NvidiaSmiError,
    find_tool,
    number,
    query,
    read_health,
    shortened,
)

_UNIFIED_MEMORY = Path("/dev/nvidia-uvm")
_HELPER_LIMIT_S = 60
# The name comes last: it is free text, the other fields hold no comma.
_GPU_FIELDS = (
    "index",
    "uuid",
    "memory.total",
    "memory.used",
    "driver_version",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "retired_pages.double_bit.count",
    "retired_pages.pending",
    "mig.mode.current",
    "temperature.gpu",
    "name",
)
_PROCESS_FIELDS = ("gpu_uuid", "pid", "used_memory", "process_name")
_ADVICE_BY_TEXT = (
    ("version mismatch", "The driver was updated under a running kernel module: reboot, or reload the nvidia modules."),
    (
        "couldn't communicate",
        "The driver is not loaded: `modprobe nvidia`, or reinstall the driver, then `nvidia-smi`.",
    ),
    ("is lost", "A GPU fell off the bus: reboot; if it comes again, replace the card or its riser."),
    (
        "no devices",
        "The driver runs but sees no GPU: check `lspci | grep -i nvidia` and what was passed into this host.",
    ),
    (
        "did not answer",
        "The driver hangs, or starts each GPU anew for each question: keep it loaded (`nvidia-smi -pm 1`); if that "
        "does not help, look at `dmesg | grep -i xid`; a reboot usually helps.",
    ),
    ("not on path", "Install the NVIDIA driver, or choose a GPU profile without GPUs."),
)


@dataclass(frozen=True)
class GpuProcess:
    """A compute process on a GPU; `memory_mib` is None where the driver does not say."""

    pid: int
    name: str
    memory_mib: int | None


@dataclass(frozen=True)
class Gpu:
    """One GPU. None means that this card or driver does not report the figure.

    Attributes:
        ecc_volatile: uncorrected memory errors since the driver was loaded.
        ecc_aggregate: uncorrected memory errors over the card's life.
        retired_pages: pages retired for double-bit errors.
        retirement_pending: a page will be retired at the next reboot.
        health: further problems; empty where the driver does not report them.
    """

    index: int
    uuid: str
    name: str
    memory_total_mib: int | None
    memory_used_mib: int | None
    driver: str
    ecc_volatile: int | None
    ecc_aggregate: int | None
    retired_pages: int | None
    retirement_pending: bool
    mig: bool
    temperature_c: int | None
    processes: tuple[GpuProcess, ...] = ()
    health: Health = field(default_factory=Health)


@dataclass(frozen=True)
class GpuReport:
    """All GPUs, or one sentence why they are not known; with a problem there is no list at all."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""

    @property
    def driver(self) -> str:
        """Driver version; empty without GPU."""
        return self.gpus[0].driver if self.gpus else ""

    @property
    def advice(self) -> str:
        """What to do about the problem; empty where there is none."""
        if not self.problem:
            return ""
        text = self.problem.lower()
        fitting = (advice for sign, advice in _ADVICE_BY_TEXT if sign in text)
        return next(fitting, "Run `nvidia-smi` by hand; it must list the GPUs and end with exit code 0.")


def read_gpus(*, timeout_s: float = 60, kernel_log: Path = KERNEL_LOG) -> GpuReport:
    """The GPUs that nvidia-smi reports, or the reason why its answer is unusable; never raises, never hangs.

    Args:
        timeout_s: for each call; then the tool and its children are killed. A driver that is not kept loaded starts
            each GPU at each call, which takes one to three seconds per GPU.
        kernel_log: file with the driver's Xid errors.
    """
    try:
        tool = find_tool()
        gpus = [_parse_gpu(row) for row in query(tool, "--query-gpu", _GPU_FIELDS, timeout_s=timeout_s)]
        if not gpus:
            raise NvidiaSmiError("nvidia-smi reports no devices")
        holders = [
            _parse_process(row) for row in query(tool, "--query-compute-apps", _PROCESS_FIELDS, timeout_s=timeout_s)
        ]
    except NvidiaSmiError as error:
        return GpuReport(problem=str(error))
    health = read_health(tool, timeout_s=timeout_s, kernel_log=kernel_log)
    return GpuReport(
        gpus=tuple(replace(gpu, processes=_on(gpu, holders), health=health.get(gpu.uuid, Health())) for gpu in gpus)
    )


def _on(gpu: Gpu, holders: list[tuple[str, GpuProcess]]) -> tuple[GpuProcess, ...]:
    return tuple(process for uuid, process in holders if uuid == gpu.uuid)


def _parse_gpu(row: list[str]) -> Gpu:
    cells = dict(zip(_GPU_FIELDS, row, strict=True))
    if not cells["index"].isdigit() or not cells["uuid"].startswith("GPU-"):
        raise NvidiaSmiError(f"nvidia-smi's answer cannot be read: {shortened(', '.join(row))!r}")
    return Gpu(
        index=int(cells["index"]),
        uuid=cells["uuid"],
        name=cells["name"],
        memory_total_mib=number(cells["memory.total"], int),
        memory_used_mib=number(cells["memory.used"], int),
        driver=cells["driver_version"],
        ecc_volatile=number(cells["ecc.errors.uncorrected.volatile.total"], int),
        ecc_aggregate=number(cells["ecc.errors.uncorrected.aggregate.total"], int),
        retired_pages=number(cells["retired_pages.double_bit.count"], int),
        retirement_pending=cells["retired_pages.pending"].lower() == "yes",
        mig=cells["mig.mode.current"].lower() == "enabled",
        temperature_c=number(cells["temperature.gpu"], int),
    )


def _parse_process(row: list[str]) -> tuple[str, GpuProcess]:
    uuid, pid, memory, name = row
    if not pid.isdigit():
        raise NvidiaSmiError(f"nvidia-smi's list of processes cannot be read: {shortened(', '.join(row))!r}")
    return uuid, GpuProcess(pid=int(pid), name=name, memory_mib=number(memory, int))


def make_device_nodes() -> None:
    """Make /dev/nvidia-uvm with the driver's helper if it is missing: without it CUDA finds no GPU.

    CUDA starts that helper itself, but set-uid root has no effect in the user namespace of a stage whose user is not
    root. So the helper is started before. nvidia-smi does not make this node.
    """
    helper = shutil.which("nvidia-modprobe")
    if os.geteuid() == 0 or helper is None or _UNIFIED_MEMORY.exists():
        return
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([helper, "-u", "-c=0"], check=False, timeout=_HELPER_LIMIT_S)
