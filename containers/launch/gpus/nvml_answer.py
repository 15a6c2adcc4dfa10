"""Print what NVML says of the driver and of each GPU, as one line of JSON.

A program of its own (`python -m containers.launch.gpus.nvml_answer`), because a call to a hung driver never returns:
`nvml` starts it with a time limit. It opens each card by itself, so that a sick one does not hide the others. With the
argument `sample` it asks only for what changes while a stage works.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml

# After one of these answers the card serves no program until it is reset or replaced.
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND)
_MIB = 1024**2


class _SickError(Exception):
    """The card answers that it is lost, or cannot say the least of itself."""


class _Card:
    """Ask one card for its figures; those that it fails to give are collected by name."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.unreadable: list[str] = []

    def ask(self, name: str, question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer; None where the card or this driver has no such figure."""
        try:
            return question(self._handle, *arguments)
        except pynvml.NVMLError as error:
            if error.value in _LOST:
                raise _SickError(str(error)) from error
            if error.value == pynvml.NVML_ERROR_UNKNOWN:
                self.unreadable.append(name)
            return None

    def must(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, without which nothing is known of the card; None only where it has no such figure."""
        try:
            return question(self._handle, *arguments)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED or error.value == pynvml.NVML_ERROR_NO_PERMISSION:
                return None
            raise _SickError(str(error)) from error


def answer(*, is_sample: bool) -> dict[str, Any]:
    """Driver, newest CUDA and cards, or `error` where the driver itself does not answer."""
    try:
        pynvml.nvmlInit()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        found: dict[str, Any] = {"driver": pynvml.nvmlSystemGetDriverVersion(), "cuda": cuda}
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return {"error": str(error), "has_library": error.value != pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}
    return {**found, "cards": [_of_card(index, is_sample=is_sample) for index in range(count)]}


def _of_card(index: int, *, is_sample: bool) -> dict[str, Any]:
    known: dict[str, Any] = {"index": index}
    try:
        card = _Card(pynvml.nvmlDeviceGetHandleByIndex(index))
        known["uuid"] = card.must(pynvml.nvmlDeviceGetUUID) or ""
        known["name"] = card.must(pynvml.nvmlDeviceGetName) or ""
        memory = card.must(pynvml.nvmlDeviceGetMemoryInfo)
        if memory is not None:
            known["memory_total_mib"], known["memory_used_mib"] = memory.total // _MIB, memory.used // _MIB
        known |= _sample(card)
        known |= {} if is_sample else _figures(card)
        known["unreadable"] = card.unreadable
    except _SickError as error:
        known["sick"] = str(error)
    except pynvml.NVMLError as error:
        known["sick"] = str(error)
    return known


def _sample(card: _Card) -> dict[str, Any]:
    ask, nvml = card.ask, pynvml
    use, power = ask("use", nvml.nvmlDeviceGetUtilizationRates), ask("power", nvml.nvmlDeviceGetPowerUsage)
    return {
        "ecc_volatile": _memory_errors(card, nvml.NVML_VOLATILE_ECC),
        "temperature_c": ask("temperature", nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        "clock_reasons": _clock_reasons(card),
        "utilization_percent": None if use is None else use.gpu,
        "power_w": None if power is None else power / 1000,
    }


def _memory_errors(card: _Card, counter: int) -> int | None:
    kind = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    count: int | None = card.ask("ECC errors", pynvml.nvmlDeviceGetTotalEccErrors, kind, counter)
    return count


def _figures(card: _Card) -> dict[str, Any]:
    ask, nvml = card.ask, pynvml
    programs = ask("compute mode", nvml.nvmlDeviceGetComputeMode)
    pci = ask("bus", nvml.nvmlDeviceGetPciInfo)
    retired = ask("retired pages", nvml.nvmlDeviceGetRetiredPages, nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
    mode, limit = ask("MIG mode", nvml.nvmlDeviceGetMigMode), ask("power limit", nvml.nvmlDeviceGetEnforcedPowerLimit)
    return {
        "bus": "" if pci is None else pci.busId,
        "ecc_aggregate": _memory_errors(card, nvml.NVML_AGGREGATE_ECC),
        "retired_pages": None if retired is None else len(retired),
        "retirement_pending": bool(ask("retired pages", nvml.nvmlDeviceGetRetiredPagesPendingStatus)),
        "mig": mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        "compute_capability": ask("compute capability", nvml.nvmlDeviceGetCudaComputeCapability),
        "is_prohibited": programs == nvml.NVML_COMPUTEMODE_PROHIBITED,
        "is_exclusive": programs == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
        "num_links": _links(card),
        "remapped": ask("remapped rows", nvml.nvmlDeviceGetRemappedRows),
        "bad_inforom": _has_bad_inforom(card),
        "power_limit_w": None if limit is None else limit / 1000,
        "processes": _processes(card),
    }


def _links(card: _Card) -> int:
    """NVLinks that are up; a board without any refuses the first question."""
    count = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = card.ask("NVLink", pynvml.nvmlDeviceGetNvLinkState, link)
        if state is None:
            break
        count += state == pynvml.NVML_FEATURE_ENABLED
    return count


def _clock_reasons(card: _Card) -> int:
    """Bits of what slows the clocks; drivers before 535 know only the second question."""
    questions = (pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
    found = (card.ask("clocks", question) for question in questions)
    return next((bits for bits in found if bits is not None), 0)


def _has_bad_inforom(card: _Card) -> bool:
    try:
        card.must(pynvml.nvmlDeviceValidateInforom)
    except _SickError as error:
        return "inforom" in str(error).lower()
    return False


def _processes(card: _Card) -> list[dict[str, Any]]:
    running = card.ask("processes", pynvml.nvmlDeviceGetComputeRunningProcesses) or []
    return [
        {
            "pid": process.pid,
            "name": _process_name(process.pid),
            "memory_mib": None if process.usedGpuMemory is None else process.usedGpuMemory // _MIB,
        }
        for process in running
    ]


def _process_name(pid: int) -> str:
    try:
        return str(pynvml.nvmlSystemGetProcessName(pid))
    except pynvml.NVMLError:  # of another namespace, or ended since
        return "process"


if __name__ == "__main__":
    found = answer(is_sample="sample" in sys.argv[1:])
    sys.stdout.write(json.dumps(found, default=lambda value: value.decode("utf-8", errors="replace")) + "\n")
