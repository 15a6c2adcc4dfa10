"""Figures of a plan as text, coarse: an estimate has two digits at most."""

import math

_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_PREFIXES = ((1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


def size_text(count: float) -> str:
    """Bytes: `51.5 GiB`."""
    unit = 0
    while count >= 1024 and unit < len(_SIZE_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_SIZE_UNITS[unit]}" if unit < 2 else f"{count:.1f} {_SIZE_UNITS[unit]}"


def duration_text(seconds: float) -> str:
    """Seconds: `45 s`, `12 min`, `3.2 h`, `1,062 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds > 72 * 3600:
        return f"{seconds / 86400:,.0f} days"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def epochs_text(count: float) -> str:
    """`1.4` or `0.035`; rounded down, since it may stand behind `at least`."""
    parts = 10 if count >= 1 else 1000
    return f"{math.floor(parts * count) / parts:g}"


def operations_text(count: float) -> str:
    """Floating-point operations: `1.8 EFLOP`."""
    for size, prefix in _PREFIXES:
        if count >= size:
            return f"{count / size:.1f} {prefix}FLOP"
    return f"{count:,.0f} FLOP"


def count_text(count: float) -> str:
    """Tokens or steps in a column: `180`, `21.0 M`."""
    for size, prefix in ((1e9, "G"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.1f} {prefix}"
    return f"{count:,.0f}"
