"""Whether a text is a schedule in cron's words, told before any server starts. Pure."""

import re
from collections.abc import Iterator, Mapping

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_NO_NAMES: Mapping[str, int] = {}
# Field → least and greatest number, and the names that stand for numbers.
_FIELDS: Mapping[str, tuple[int, int, Mapping[str, int]]] = {
    "minute": (0, 59, _NO_NAMES),
    "hour": (0, 23, _NO_NAMES),
    "day of the month": (1, 31, _NO_NAMES),
    "month": (1, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    "day of the week": (0, 7, {name: number for number, name in enumerate(_DAYS)}),
}
_PART = re.compile(r"(?:\*|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>\d+))?")


def cron_problem(text: str) -> str:
    """What is wrong with a cron expression of five fields; empty: nothing.

    Example: `0 25 * * 1` gives `hour: 25, wanted 0 to 23`; `0 6 * * mon` gives nothing.
    """
    parts = text.split()
    if len(parts) != len(_FIELDS):
        return f"{len(parts)} fields, wanted five: {', '.join(_FIELDS)}"
    return "; ".join(
        f"{name}: {wrong}, wanted {low} to {high}"
        for part, (name, (low, high, names)) in zip(parts, _FIELDS.items(), strict=True)
        for wrong in _wrong_parts(part.lower(), low, high, names)
    )


def _wrong_parts(field: str, low: int, high: int, names: Mapping[str, int]) -> Iterator[str]:
    for part in field.split(","):
        found = _PART.fullmatch(part)
        if found is None:
            yield part or "nothing"
            continue
        ends = [_number(found[group], names) for group in ("low", "high") if found[group] is not None]
        in_bounds = all(end is not None and low <= end <= high for end in ends)
        rises = None in ends or ends == sorted(end for end in ends if end is not None)
        if not in_bounds or not rises or found["step"] == "0":
            yield part


def _number(text: str, names: Mapping[str, int]) -> int | None:
    return int(text) if text.isdecimal() else names.get(text)
