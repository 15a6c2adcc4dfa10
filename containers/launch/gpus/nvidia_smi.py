"""Ask nvidia-smi for the GPUs, where NVML itself cannot be asked; every unusable answer becomes a reason.

A card that answers with an error, or that the tool names as lost, is a sick one among the others.
"""

import csv
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from containers.launch.gpus.bounded import NoAnswerError, run_bounded, shortened
from containers.launch.gpus.cards import NO_DEVICES, NO_DRIVER, Gpu, GpuProcess, GpuReport, GpuState, Health
from containers.launch.gpus.kernel_log import bus_key
from containers.launch.gpus.nvml import THROTTLE_REASONS

_Number = TypeVar("_Number", int, float)
_Question = Literal["--query-gpu", "--query-compute-apps", "--query-remapped-rows"]

_TOOL = "nvidia-smi"
_NOT_AVAILABLE = ("n/a", "not supported", "not available", "insufficient permissions", "deprecated")
_LOST = ("gpu is lost", "gpu requires reset", "gpu requires restart")
_UNREADABLE = ("unknown error", "err!")
# Exit codes of its manual page: a corrupt infoROM, which harms nothing; and a card that is lost beside others.
_BAD_INFOROM, _GPU_LOST = 14, 15
# The name comes last: it is free text, the other fields hold no comma.
_GPU_FIELDS = {
    "index": "index",
    "uuid": "uuid",
    "memory_total_mib": "memory.total",
    "memory_used_mib": "memory.used",
    "driver": "driver_version",
    "ecc_volatile": "ecc.errors.uncorrected.volatile.total",
    "ecc_aggregate": "ecc.errors.uncorrected.aggregate.total",
    "retired_pages": "retired_pages.double_bit.count",
    "retirement_pending": "retired_pages.pending",
    "mig": "mig.mode.current",
    "temperature_c": "temperature.gpu",
    "compute_capability": "compute_cap",
    "power_limit_w": "power.limit",
    "bus": "pci.bus_id",
    "name": "name",
}
# Without these nothing is known of a card; where a driver does not know another one, the question is put without it.
_NEEDED = ("index", "uuid", "memory_total_mib", "memory_used_mib", "driver", "name")
_PROCESS_FIELDS = ("gpu_uuid", "pid", "used_memory", "process_name")
_FIGURES = {
    "utilization_percent": "utilization.gpu",
    "memory_used_mib": "memory.used",
    "memory_total_mib": "memory.total",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
}
_THROTTLE_FIELDS = dict(
    zip(
        ("hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"),
        THROTTLE_REASONS.values(),
        strict=True,
    )
)
# Drivers before 535 know only the second name; a driver that knows neither reports no throttling.
_THROTTLE_PREFIXES = ("clocks_event_reasons", "clocks_throttle_reasons")
_UNKNOWN_FIELD = re.compile(r'Field "([\w.]+)" is not a valid field')
_NO_HANDLE = re.compile(
    r"Unable to determine the device handle for gpu\s?(?:(\d{1,2}):\s+)?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f.]+)?",
    re.IGNORECASE,
)
_INFOROM = re.compile(r"infoROM is corrupted at gpu ([0-9a-fA-F:.]+)", re.IGNORECASE)


def read_by_smi(*, timeout_s: float) -> GpuReport:
    """The GPUs that nvidia-smi reports, sick ones among them, or the reason why its answer is unusable."""
    try:
        tool = _found_tool()
        rows, remarks = _query_known_fields(tool, timeout_s=timeout_s)
        gpus = [_gpu(row) for row in rows]
        gpus += _without_handle(remarks, known=gpus)
        if not gpus:
            raise NoAnswerError(NO_DEVICES)
        holders = [_process(row) for row in _rows(tool, "--query-compute-apps", _PROCESS_FIELDS, timeout_s=timeout_s)]
    except NoAnswerError as error:
        return GpuReport(problem=str(error), source=_TOOL)
    throttled = {state.uuid: state.throttled for state in sample_by_smi(timeout_s=timeout_s)}
    remapped = _remapped_rows(tool, timeout_s=timeout_s)
    bad_inforoms = {bus_key(bus) for bus in _INFOROM.findall(remarks)}
    return GpuReport(
        gpus=tuple(
            replace(
                gpu,
                processes=tuple(process for uuid, process in holders if uuid == gpu.uuid),
                health=replace(
                    gpu.health,
                    throttled=throttled.get(gpu.uuid, ()),
                    remap_failed=remapped.get(gpu.uuid, (False, False))[0],
                    remap_pending=remapped.get(gpu.uuid, (False, False))[1],
                    bad_inforom=bool(gpu.bus) and bus_key(gpu.bus) in bad_inforoms,
                ),
            )
            for gpu in sorted(gpus, key=lambda gpu: gpu.index)
        ),
        driver=next((row["driver"] for row in rows), ""),
        source=_TOOL,
    )


def sample_by_smi(*, timeout_s: float) -> tuple[GpuState, ...]:
    """One sample of each GPU that answers; empty where nvidia-smi gives none. Never raises, never hangs."""
    for prefix in (*_THROTTLE_PREFIXES, ""):
        reasons = tuple(_THROTTLE_FIELDS) if prefix else ()
        fields = ("uuid", "index", *_FIGURES.values(), *(f"{prefix}.{reason}" for reason in reasons))
        try:
            tool = _found_tool()
            rows = _rows(tool, "--query-gpu", fields, timeout_s=timeout_s)
            states = (_state(dict(zip(fields, row, strict=True)), prefix=prefix) for row in rows)
            return tuple(state for state in states if state is not None)
        except NoAnswerError as error:
            if "exit code" not in str(error):
                break
    return ()


def _found_tool() -> str:
    tool = shutil.which(_TOOL)
    if tool is None:
        raise NoAnswerError(f"{_TOOL} is not on PATH: {NO_DRIVER}")
    return tool


def _query_known_fields(tool: str, *, timeout_s: float) -> tuple[list[dict[str, str]], str]:
    """Rows of the cards, and what the tool said beside them; fields that this driver does not know are left out."""
    fields = dict(_GPU_FIELDS)
    while True:
        code, output, errors = _asked(tool, "--query-gpu", tuple(fields.values()), timeout_s=timeout_s)
        unknown = _UNKNOWN_FIELD.search(output + errors)
        name = next((key for key, field in fields.items() if unknown and field == unknown.group(1)), None)
        if name is None or name in _NEEDED:
            break
        del fields[name]
    told = output.splitlines()
    lines = [line for line in told if len(line.split(",")) >= len(fields)]
    remarks = "\n".join([*(line for line in told if line not in lines), errors])
    if code not in (0, _BAD_INFOROM) and not (code == _GPU_LOST and lines):
        raise _failed(code, output, errors)
    rows = _parsed("--query-gpu", lines if _is_known_remark(remarks) else told, len(fields))
    return [dict(zip(fields, row, strict=True)) for row in rows], remarks


def _is_known_remark(text: str) -> bool:
    """Whether every line beside the table is one that is understood; anything else spoils the answer."""
    lines = filter(None, map(str.strip, text.splitlines()))
    return all(_NO_HANDLE.search(line) or _INFOROM.search(line) for line in lines)


def _rows(tool: str, what: _Question, fields: Sequence[str], *, timeout_s: float) -> list[list[str]]:
    """A row of cells for each line of the answer; only the last cell may hold commas.

    Raises:
        NoAnswerError: another exit code than 0, a line that cannot be read, or no answer in time.
    """
    code, output, errors = _asked(tool, what, fields, timeout_s=timeout_s)
    if code not in (0, _BAD_INFOROM, _GPU_LOST):
        raise _failed(code, output, errors)
    lines = [line for line in output.splitlines() if not (_NO_HANDLE.search(line) or _INFOROM.search(line))]
    return _parsed(what, lines, len(fields))


def _asked(tool: str, what: _Question, fields: Sequence[str], *, timeout_s: float) -> tuple[int, str, str]:
    command = [tool, f"{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    return run_bounded(command, name=_TOOL, timeout_s=timeout_s)


def _failed(code: int, output: str, errors: str) -> NoAnswerError:
    said = shortened(" ".join((errors + "\n" + output).split()))
    return NoAnswerError(f"{_TOOL} ended with exit code {code}: {said or 'it said nothing'}")


def _parsed(what: str, lines: Sequence[str], num_fields: int) -> list[list[str]]:
    rows = []
    for line in lines:
        if not line.strip() or line.strip().lower().startswith("no devices were found"):
            continue
        if line.strip().lower() in ("[not supported]", "[n/a]"):  # the list of processes, under WSL
            continue
        row = [cell.strip() for cell in next(csv.reader([line], quoting=csv.QUOTE_NONE))]
        row = [*row[: num_fields - 1], ", ".join(row[num_fields - 1 :])]
        if len(row) != num_fields or not row[-1]:
            raise NoAnswerError(f"{_TOOL}'s answer to {what} cannot be read: {shortened(line)!r}")
        rows.append(row)
    return rows


def _gpu(cells: Mapping[str, str]) -> Gpu:
    """One card; raises NoAnswerError for a row that is neither a card nor a sick one."""
    if not cells["index"].isdigit():
        raise NoAnswerError(f"{_TOOL}'s answer cannot be read: {shortened(', '.join(cells.values()))!r}")
    index, uuid = int(cells["index"]), cells["uuid"]
    lost = next((_bare(cell) for cell in cells.values() if _bare(cell).lower() in _LOST), "")
    unknown = any(_bare(cells[name]).lower() in _UNREADABLE for name in ("uuid", "memory_total_mib"))
    if lost or unknown:
        known = uuid if uuid.startswith("GPU-") else ""
        name = "" if _bare(cells["name"]).lower() in (*_LOST, *_UNREADABLE) else cells["name"]
        return Gpu(index=index, uuid=known, name=name, bus=cells.get("bus", ""), sick=lost or "Unknown Error")
    if not uuid.startswith("GPU-"):
        raise NoAnswerError(f"{_TOOL}'s answer cannot be read: {shortened(', '.join(cells.values()))!r}")
    capability = re.fullmatch(r"(\d+)\.(\d+)", cells.get("compute_capability", ""))
    return Gpu(
        index=index,
        uuid=uuid,
        name=cells["name"],
        bus=cells.get("bus", ""),
        memory_total_mib=_number(cells["memory_total_mib"], int),
        memory_used_mib=_number(cells["memory_used_mib"], int),
        ecc_volatile=_number(cells.get("ecc_volatile"), int),
        ecc_aggregate=_number(cells.get("ecc_aggregate"), int),
        retired_pages=_number(cells.get("retired_pages"), int),
        retirement_pending=cells.get("retirement_pending", "").lower() == "yes",
        mig=cells.get("mig", "").lower() == "enabled",
        temperature_c=_number(cells.get("temperature_c"), int),
        compute_capability=(int(capability.group(1)), int(capability.group(2))) if capability else None,
        power_limit_w=_number(cells.get("power_limit_w"), float),
        health=Health(unreadable=tuple(_GPU_FIELDS[name] for name, cell in cells.items() if _is_unreadable(cell))),
    )


def _without_handle(remarks: str, *, known: Sequence[Gpu]) -> list[Gpu]:
    """The cards that the tool names without a row; one without a number gets the first free one."""
    taken = {gpu.index for gpu in known}
    found = []
    for line in remarks.splitlines():
        match = _NO_HANDLE.search(line)
        if match is None:
            continue
        index = int(match.group(1)) if match.group(1) else next(i for i in range(len(taken) + 1) if i not in taken)
        if index in taken:
            continue
        taken.add(index)
        why = "GPU is lost" if "is lost" in line else "Unknown Error"
        found.append(Gpu(index=index, uuid="", name="", bus=match.group(2) or "", sick=why))
    return found


def _process(row: Sequence[str]) -> tuple[str, GpuProcess]:
    uuid, pid, memory, name = row
    if not pid.isdigit():
        raise NoAnswerError(f"{_TOOL}'s list of processes cannot be read: {shortened(', '.join(row))!r}")
    return uuid, GpuProcess(pid=int(pid), name=name, memory_mib=_number(memory, int))


def _state(cells: Mapping[str, str], *, prefix: str) -> GpuState | None:
    if not cells["index"].isdigit() or not cells["uuid"].startswith("GPU-"):
        if any(_bare(cell).lower() in (*_LOST, *_UNREADABLE) for cell in cells.values()):
            return None
        raise NoAnswerError(f"{_TOOL}'s answer cannot be read")
    throttled = tuple(
        words for reason, words in _THROTTLE_FIELDS.items() if cells.get(f"{prefix}.{reason}", "").lower() == "active"
    )
    return GpuState(
        uuid=cells["uuid"],
        index=int(cells["index"]),
        throttled=throttled,
        **{name: _number(cells[field], float) for name, field in _FIGURES.items()},
    )


def _remapped_rows(tool: str, *, timeout_s: float) -> dict[str, tuple[bool, bool]]:
    """GPU UUID → whether replacing a bad row failed, and whether one waits to be replaced."""
    fields = ("gpu_uuid", "remapped_rows.failure", "remapped_rows.pending")
    try:
        rows = _rows(tool, "--query-remapped-rows", fields, timeout_s=timeout_s)
    except NoAnswerError:
        return {}
    said = ("yes", "1")
    return {uuid: (failure.lower() in said, pending.lower() in said) for uuid, failure, pending in rows}


def _bare(cell: str) -> str:
    return cell.strip().strip("[]")


def _is_unreadable(cell: str) -> bool:
    return _bare(cell).lower() in _UNREADABLE


def _number(cell: str | None, kind: type[_Number]) -> _Number | None:
    """The cell as a number; None where the card does not report it.

    Raises:
        NoAnswerError: the cell is anything else.
    """
    if cell is None or _bare(cell).lower() in (*_NOT_AVAILABLE, *_LOST, *_UNREADABLE):
        return None
    try:
        return kind(cell)
    except ValueError as error:
        raise NoAnswerError(f"{_TOOL} gives {shortened(cell)!r} where a number is expected") from error
