"""Read the health of each GPU from nvidia-smi and from the kernel's log."""

import contextlib
import csv
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

Number = TypeVar("Number", int, float)
Question = Literal["--query-gpu", "--query-compute-apps", "--query-remapped-rows"]

_NOT_AVAILABLE = ("n/a", "not supported", "not available", "insufficient permissions", "unknown error", "deprecated")
_KILL_GRACE_S = 2.0
_SHOWN_CHARACTERS = 200
MISSING = "nvidia-smi is not on PATH: there is no NVIDIA driver here"
KERNEL_LOG = Path("/dev/kmsg")
_MAX_LOG_BYTES = 8 * 1024**2
# Xid errors after which a card must be reset or examined before it is trusted; most others are faults of a program.
_TELLING_XIDS = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "a bad row could not be retired",
    74: "NVLink error",
    79: "fell off the bus",
    92: "many single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "no answer from its system processor",
    120: "error of its system processor",
}
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_BUS = re.compile(r"([0-9a-fA-F]+):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})")
# Figure of `GpuState` → field of nvidia-smi.
_FIGURES = {
    "utilization_percent": "utilization.gpu",
    "memory_used_mib": "memory.used",
    "memory_total_mib": "memory.total",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
}
_THROTTLE_REASONS = {
    "hw_thermal_slowdown": "too hot (the card slows itself down)",
    "sw_thermal_slowdown": "too hot (the driver slows it down)",
    "hw_power_brake_slowdown": "the power supply asks it to slow down",
}
# Drivers before 535 know only the second name; a driver that knows neither reports no throttling.
_THROTTLE_PREFIXES = ("clocks_event_reasons", "clocks_throttle_reasons")


class NvidiaSmiError(Exception):
    """nvidia-smi gave no usable answer; the message says why."""


def find_tool() -> str:
    """Path of nvidia-smi. Raises NvidiaSmiError where it is not on PATH."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise NvidiaSmiError(MISSING)
    return tool


def query(tool: str, what: Question, fields: tuple[str, ...], *, timeout_s: float) -> list[list[str]]:
    """Run a query and return a row of cells for each line of the answer; only the last cell may hold commas.

    Raises:
        NvidiaSmiError: another exit code than 0, a line that cannot be read, or no answer in time.
    """
    command = [tool, f"{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    exit_code, output, errors = _run_bounded(command, timeout_s=timeout_s)
    said = shortened(" ".join((errors + "\n" + output).split()))
    if exit_code:
        raise NvidiaSmiError(f"nvidia-smi ended with exit code {exit_code}: {said or 'it said nothing'}")
    rows = []
    for line in output.splitlines():
        if not line.strip() or line.strip().lower().startswith("no devices were found"):
            continue
        # Only the last field may hold commas.
        row = [cell.strip() for cell in next(csv.reader([line], quoting=csv.QUOTE_NONE))]
        row = [*row[: len(fields) - 1], ", ".join(row[len(fields) - 1 :])]
        if len(row) != len(fields) or not row[-1]:
            raise NvidiaSmiError(f"nvidia-smi's answer to {what} cannot be read: {shortened(line)!r}")
        rows.append(row)
    return rows


def _run_bounded(command: list[str], *, timeout_s: float) -> tuple[int, str, str]:
    """Exit code, output and errors; own process group, because a killed script's child would keep the pipes open."""
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
        raise NvidiaSmiError(f"nvidia-smi cannot be started: {error.strerror or error}") from error
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process that waits for a dead driver cannot be killed; do not wait for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_KILL_GRACE_S)
        raise NvidiaSmiError(f"nvidia-smi did not answer within {timeout_s:g} s and was killed") from error
    return process.returncode, output, errors


def number(cell: str, kind: type[Number]) -> Number | None:
    """The cell as a number; None where the card does not report it.

    Raises:
        NvidiaSmiError: the cell is anything else.
    """
    if cell.strip("[]").lower() in _NOT_AVAILABLE:
        return None
    try:
        return kind(cell)
    except ValueError as error:
        raise NvidiaSmiError(f"nvidia-smi gives {shortened(cell)!r} where a number is expected") from error


def shortened(text: str) -> str:
    """The beginning of a tool's output, for a message."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


@dataclass(frozen=True)
class GpuState:
    """One sample of a GPU. None means that this card or driver does not report the figure."""

    uuid: str
    index: int
    utilization_percent: float | None
    memory_used_mib: float | None
    memory_total_mib: float | None
    power_w: float | None
    temperature_c: float | None
    ecc_uncorrected: float | None
    throttled: tuple[str, ...]
    bus: str


@dataclass(frozen=True)
class Health:
    """Problems of a GPU beside its counters of memory errors.

    Attributes:
        throttled: why it runs slower than it could now; heat and power only.
        remap_pending: a bad row of memory will be replaced at the next reset.
        remap_failed: a bad row of memory could not be replaced.
        xids: Xid errors in the kernel's log that concern the card itself, as `79 (fell off the bus)`.
    """

    throttled: tuple[str, ...] = ()
    remap_pending: bool = False
    remap_failed: bool = False
    xids: tuple[str, ...] = ()


def read_states(tool: str | None = None, *, timeout_s: float = 10) -> tuple[GpuState, ...]:
    """One sample of each GPU; empty where nvidia-smi gives none. Never raises, never hangs."""
    for prefix in (*_THROTTLE_PREFIXES, ""):
        reasons = tuple(_THROTTLE_REASONS) if prefix else ()
        fields = ("uuid", "index", *_FIGURES.values(), *(f"{prefix}.{reason}" for reason in reasons), "pci.bus_id")
        try:
            rows = query(tool or find_tool(), "--query-gpu", fields, timeout_s=timeout_s)
            return tuple(_state(dict(zip(fields, row, strict=True)), prefix=prefix) for row in rows)
        except NvidiaSmiError as error:
            if "exit code" not in str(error):
                break
    return ()


def read_health(tool: str, *, timeout_s: float, kernel_log: Path = KERNEL_LOG) -> dict[str, Health]:
    """GPU UUID → its health; GPUs without information are left out. Never raises."""
    states = read_states(tool, timeout_s=timeout_s)
    if not states:
        return {}
    remapped, errors = _remapped_rows(tool, timeout_s=timeout_s), _xid_errors(kernel_log)
    return {
        state.uuid: replace(
            remapped.get(state.uuid, Health()), throttled=state.throttled, xids=errors.get(_bus_key(state.bus), ())
        )
        for state in states
    }


def _state(cells: Mapping[str, str], *, prefix: str) -> GpuState:
    if not cells["index"].isdigit() or not cells["uuid"].startswith("GPU-"):
        raise NvidiaSmiError("nvidia-smi's answer cannot be read")
    throttled = tuple(
        words for reason, words in _THROTTLE_REASONS.items() if cells.get(f"{prefix}.{reason}", "").lower() == "active"
    )
    return GpuState(
        uuid=cells["uuid"],
        index=int(cells["index"]),
        throttled=throttled,
        bus=cells["pci.bus_id"],
        **{name: number(cells[field], float) for name, field in _FIGURES.items()},
    )


def _remapped_rows(tool: str, *, timeout_s: float) -> dict[str, Health]:
    fields = ("gpu_uuid", "remapped_rows.failure", "remapped_rows.pending")
    try:
        rows = query(tool, "--query-remapped-rows", fields, timeout_s=timeout_s)
    except NvidiaSmiError:
        return {}
    said = ("yes", "1")
    return {
        uuid: Health(remap_failed=failure.lower() in said, remap_pending=pending.lower() in said)
        for uuid, failure, pending in rows
    }


def _xid_errors(kernel_log: Path) -> dict[tuple[int, ...], tuple[str, ...]]:
    """Bus of the GPU → its Xid errors of `_TELLING_XIDS` in the log; empty where this user may not read the log."""
    found: dict[tuple[int, ...], dict[str, None]] = {}
    for line in _log_lines(kernel_log):
        match = _XID.search(line)
        if match and int(match.group(2)) in _TELLING_XIDS:
            number_, words = match.group(2), _TELLING_XIDS[int(match.group(2))]
            found.setdefault(_bus_key(match.group(1)), {})[f"{number_} ({words})"] = None
    return {bus: tuple(errors) for bus, errors in found.items()}


def _log_lines(path: Path) -> Iterator[str]:
    """Yield the present lines of the log, without blocking; the kernel's log gives one record per read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    left = _MAX_LOG_BYTES
    try:
        while left > 0 and (record := os.read(descriptor, 64 * 1024)):
            left -= len(record)
            yield from record.decode("utf-8", errors="replace").splitlines()
    except OSError:  # the end of the kernel's log, or a record that was overwritten meanwhile
        return
    finally:
        os.close(descriptor)


def _bus_key(text: str) -> tuple[int, ...]:
    """Domain, bus and device as numbers: `00000000:02:00.0` and `0000:02:00` are the same GPU."""
    match = _BUS.search(text)
    return tuple(int(part, 16) for part in match.groups()) if match else ()
