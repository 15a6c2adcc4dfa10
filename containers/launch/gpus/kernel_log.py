"""Find the driver's Xid errors in the kernel's log."""

import os
import re
from pathlib import Path

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


def xid_errors(log: Path = KERNEL_LOG) -> dict[tuple[int, ...], tuple[str, ...]]:
    """Bus of the GPU → its Xid errors of the card itself; empty where this user may not read the log."""
    found: dict[tuple[int, ...], dict[str, None]] = {}
    for bus, error in told_xids(log) or ():
        found.setdefault(bus, {})[error] = None
    return {bus: tuple(errors) for bus, errors in found.items()}


def told_xids(log: Path = KERNEL_LOG) -> list[tuple[tuple[int, ...], str]] | None:
    """Bus of the GPU and Xid error of the card itself, for each in the log; None where this user may not read it."""
    lines = _log_lines(log)
    if lines is None:
        return None
    matches = (match for line in lines if (match := _XID.search(line)) and int(match.group(2)) in _TELLING_XIDS)
    return [(bus_key(one.group(1)), f"{one.group(2)} ({_TELLING_XIDS[int(one.group(2))]})") for one in matches]


def bus_key(text: str) -> tuple[int, ...]:
    """Domain, bus and device as numbers: `00000000:02:00.0` and `0000:02:00` are the same GPU."""
    match = _BUS.search(text)
    return tuple(int(part, 16) for part in match.groups()) if match else ()


def _log_lines(path: Path) -> list[str] | None:
    """The present lines of the log, without blocking; None where it cannot be opened.

    The kernel's log gives one record per read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    found: list[str] = []
    left = _MAX_LOG_BYTES
    try:
        while left > 0 and (record := os.read(descriptor, 64 * 1024)):
            left -= len(record)
            found += record.decode("utf-8", errors="replace").splitlines()
    except OSError:  # the end of the kernel's log, or a record that was overwritten meanwhile
        pass
    finally:
        os.close(descriptor)
    return found
