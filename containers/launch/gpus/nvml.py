"""Ask NVML, in a child process with a time limit, for the GPUs of this machine."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from containers.launch.gpus.bounded import NoAnswerError, run_bounded, shortened
from containers.launch.gpus.cards import NO_DEVICES, Gpu, GpuProcess, GpuReport, GpuState, Health

_CHILD = "containers.launch.gpus.nvml_answer"
# Bits of `nvmlDeviceGetCurrentClocksEventReasons`, of heat and power only, and what each means.
THROTTLE_REASONS = {
    0x40: "too hot (the card slows itself down)",
    0x20: "too hot (the driver slows it down)",
    0x80: "the power supply asks it to slow down",
}


class NoNvmlError(Exception):
    """NVML cannot be asked here, so something else must be; the message says why."""


def read_by_nvml(*, timeout_s: float) -> GpuReport:
    """The GPUs, or the driver's problem.

    Raises:
        NoNvmlError: there is no NVML library, or the child broke.
    """
    found = _ask(timeout_s=timeout_s)
    if "error" in found:
        return GpuReport(problem=str(found["error"]), source="NVML")
    gpus = tuple(map(_gpu, found["cards"]))
    if not gpus:
        return GpuReport(problem=NO_DEVICES, source="NVML")
    version = int(found["cuda"])
    cuda = (version // 1000, version % 1000 // 10)
    return GpuReport(gpus=gpus, driver=str(found["driver"]), cuda=cuda, source="NVML")


def sample_by_nvml(*, timeout_s: float) -> tuple[GpuState, ...]:
    """One sample of each GPU that answers.

    Raises:
        NoNvmlError: NVML cannot be asked here.
    """
    cards = _ask("sample", timeout_s=timeout_s).get("cards", ())
    return tuple(
        GpuState(
            uuid=card["uuid"],
            index=card["index"],
            utilization_percent=card.get("utilization_percent"),
            memory_used_mib=card.get("memory_used_mib"),
            memory_total_mib=card.get("memory_total_mib"),
            power_w=card.get("power_w"),
            temperature_c=card.get("temperature_c"),
            ecc_uncorrected=card.get("ecc_volatile"),
            throttled=_throttled(card),
        )
        for card in cards
        if "sick" not in card and card["uuid"]
    )


def _ask(*arguments: str, timeout_s: float) -> dict[str, Any]:
    """What the child says; a driver that does not answer in time is an `error` of its answer.

    Raises:
        NoNvmlError: the child found no library, ended with a signal or an exception, or said nothing that is JSON.
    """
    # -P: never a module of the current folder.
    command = [sys.executable, "-P", "-m", _CHILD, *arguments]
    try:
        code, output, errors = run_bounded(command, name="The NVIDIA driver", timeout_s=timeout_s)
    except NoAnswerError as error:
        return {"error": str(error)}
    if code:
        last = errors.strip().splitlines()[-1:] or [f"exit code {code}"]
        raise NoNvmlError(f"NVML cannot be asked: {shortened(last[0])}")
    try:
        found: dict[str, Any] = json.loads(output)
    except ValueError as error:
        raise NoNvmlError(f"NVML's answer cannot be read: {shortened(output)!r}") from error
    if not found.get("has_library", True):
        raise NoNvmlError("There is no NVML library (libnvidia-ml.so.1)")
    return found


def _gpu(card: Mapping[str, Any]) -> Gpu:
    uuid = card.get("uuid", "")
    sick = card.get("sick", "") or ("" if uuid else "gives no UUID")
    known = {name: card[name] for name in _SAME_NAMES if name in card}
    capability = card.get("compute_capability")
    return Gpu(
        **known,
        index=card["index"],
        uuid=uuid,
        name=card.get("name", ""),
        sick=sick,
        compute_capability=None if capability is None else (capability[0], capability[1]),
        processes=tuple(GpuProcess(**process) for process in card.get("processes", ())),
        health=_health(card),
    )


# Figures of a card that both sides call the same.
_SAME_NAMES = (
    "bus",
    "memory_total_mib",
    "memory_used_mib",
    "ecc_volatile",
    "ecc_aggregate",
    "retired_pages",
    "retirement_pending",
    "mig",
    "temperature_c",
    "num_links",
    "is_prohibited",
    "is_exclusive",
    "power_limit_w",
)


def _health(card: Mapping[str, Any]) -> Health:
    _, _, pending, failed = card.get("remapped") or (0, 0, 0, 0)
    return Health(
        throttled=_throttled(card),
        remap_pending=bool(pending),
        remap_failed=bool(failed),
        unreadable=tuple(dict.fromkeys(card.get("unreadable", ()))),
        bad_inforom=card.get("bad_inforom", False),
    )


def _throttled(card: Mapping[str, Any]) -> tuple[str, ...]:
    bits = card.get("clock_reasons", 0)
    return tuple(words for bit, words in THROTTLE_REASONS.items() if bits & bit)
