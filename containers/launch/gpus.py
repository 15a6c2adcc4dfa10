"""What nvidia-smi says about the GPUs of this machine and about who holds them. Every odd answer becomes a reason."""

import contextlib
import csv
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, replace
from typing import Literal

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
_NOT_AVAILABLE = ("n/a", "not supported", "not available", "insufficient permissions", "unknown error", "deprecated")
_KILL_GRACE_S = 2.0
_SHOWN_CHARACTERS = 200

_MISSING = "nvidia-smi is not on PATH: there is no NVIDIA driver here"
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
    ("did not answer", "The driver hangs: look at `dmesg | grep -i xid`; a reboot usually helps."),
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
        retirement_pending: a page waits to be retired at the next reboot.
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


@dataclass(frozen=True)
class GpuReport:
    """All GPUs, or one sentence why they are not known. With a problem there is never a partial list."""

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


class _NvidiaSmiError(Exception):
    """The tool gave no answer that can be believed; the message is the report's problem."""


def read_gpus(*, timeout_s: float = 10) -> GpuReport:
    """What nvidia-smi reports, or the reason why it cannot be believed; never raises, never hangs.

    Args:
        timeout_s: for each of the two calls; then the tool and its children are killed.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return GpuReport(problem=_MISSING)
    try:
        gpus = [_parse_gpu(row) for row in _query(tool, "--query-gpu", _GPU_FIELDS, timeout_s=timeout_s)]
        if not gpus:
            raise _NvidiaSmiError("nvidia-smi reports no devices")
        holders = [
            _parse_process(row) for row in _query(tool, "--query-compute-apps", _PROCESS_FIELDS, timeout_s=timeout_s)
        ]
    except _NvidiaSmiError as error:
        return GpuReport(problem=str(error))
    return GpuReport(gpus=tuple(replace(gpu, processes=_on(gpu, holders)) for gpu in gpus))


def _on(gpu: Gpu, holders: list[tuple[str, GpuProcess]]) -> tuple[GpuProcess, ...]:
    return tuple(process for uuid, process in holders if uuid == gpu.uuid)


def _query(
    tool: str, what: Literal["--query-gpu", "--query-compute-apps"], fields: tuple[str, ...], *, timeout_s: float
) -> list[list[str]]:
    command = [tool, f"{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    exit_code, output, errors = _run_bounded(command, timeout_s=timeout_s)
    said = _shortened(" ".join((errors + "\n" + output).split()))
    if exit_code:
        raise _NvidiaSmiError(f"nvidia-smi ended with exit code {exit_code}: {said or 'it said nothing'}")
    rows = []
    for line in output.splitlines():
        if not line.strip() or line.strip().lower().startswith("no devices were found"):
            continue
        # Only the last field may hold commas.
        row = [cell.strip() for cell in next(csv.reader([line], quoting=csv.QUOTE_NONE))]
        row = [*row[: len(fields) - 1], ", ".join(row[len(fields) - 1 :])]
        if len(row) != len(fields) or not row[-1]:
            raise _NvidiaSmiError(f"nvidia-smi's answer to {what} cannot be read: {_shortened(line)!r}")
        rows.append(row)
    return rows


def _run_bounded(command: list[str], *, timeout_s: float) -> tuple[int, str, str]:
    """Exit code and output; own process group, because a killed script's child would keep the pipes open."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise _NvidiaSmiError(f"nvidia-smi cannot be started: {error.strerror or error}") from error
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process that waits for a dead driver cannot be killed; it is left behind rather than waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_KILL_GRACE_S)
        raise _NvidiaSmiError(f"nvidia-smi did not answer within {timeout_s:g} s and was killed") from error
    return process.returncode, output, errors


def _parse_gpu(row: list[str]) -> Gpu:
    cells = dict(zip(_GPU_FIELDS, row, strict=True))
    if not cells["index"].isdigit() or not cells["uuid"].startswith("GPU-"):
        raise _NvidiaSmiError(f"nvidia-smi's answer cannot be read: {_shortened(', '.join(row))!r}")
    return Gpu(
        index=int(cells["index"]),
        uuid=cells["uuid"],
        name=cells["name"],
        memory_total_mib=_number(cells["memory.total"]),
        memory_used_mib=_number(cells["memory.used"]),
        driver=cells["driver_version"],
        ecc_volatile=_number(cells["ecc.errors.uncorrected.volatile.total"]),
        ecc_aggregate=_number(cells["ecc.errors.uncorrected.aggregate.total"]),
        retired_pages=_number(cells["retired_pages.double_bit.count"]),
        retirement_pending=cells["retired_pages.pending"].lower() == "yes",
        mig=cells["mig.mode.current"].lower() == "enabled",
        temperature_c=_number(cells["temperature.gpu"]),
    )


def _parse_process(row: list[str]) -> tuple[str, GpuProcess]:
    uuid, pid, memory, name = row
    if not pid.isdigit():
        raise _NvidiaSmiError(f"nvidia-smi's list of processes cannot be read: {_shortened(', '.join(row))!r}")
    return uuid, GpuProcess(pid=int(pid), name=name, memory_mib=_number(memory))


def _number(cell: str) -> int | None:
    """The figure, or None where the card does not report it; anything else is no answer."""
    if cell.strip("[]").lower() in _NOT_AVAILABLE:
        return None
    try:
        return int(cell)
    except ValueError as error:
        raise _NvidiaSmiError(f"nvidia-smi gives {_shortened(cell)!r} where a number is expected") from error


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
