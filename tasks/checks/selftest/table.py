"""The self-test as a table for the terminal; pure."""

from collections.abc import Sequence

from containers.contracts.configs.selftest import Measurement, ProbeResult, Selftest
from containers.document.model import Column, Table
from containers.formatting import duration, number, size

# Figures that no reader of a table needs: units of a judgement, and what a verdict says already.
_LEFT_OUT = frozenset(
    {"rounding", "findings", "drifted", "loads", "rows", "failures", "work", "layers", "launches", "new_xid"}
)
_LEFT_OUT_AT_ZERO = frozenset({"wrong_words", "throttled", "new_errors", "in_use"})


def table_of(selftest: Selftest) -> Table:
    """A row for each probe: its verdict, what it measured or why it was not run, and what passes."""
    return Table(
        columns=(Column("probe"), Column("verdict"), Column("measured"), Column("passes")),
        rows=tuple((row.name, row.verdict, _measured(row), row.passes) for row in selftest.results),
    )


def failure_lines(selftest: Selftest) -> list[str]:
    """For each failure what is wrong, what passes, and what to do; those of one cause are named together."""
    lines = []
    for why in dict.fromkeys(row.why for row in selftest.failed):
        rows = [row for row in selftest.failed if row.why == why]
        lines.append(f"{', '.join(row.name for row in rows)}: {why}")
        if len(rows) == 1:
            lines.append(f"  to do:  {rows[0].advice}")
        else:
            lines.append("  to do:  It is one cause: mend it, by what the first rows say, and run the self-test again.")
    return lines


def summary(selftest: Selftest) -> str:
    """How many probes passed, failed and were not run."""
    counts = [
        (sum(row.verdict == verdict for row in selftest.results), verdict)
        for verdict in ("passed", "failed", "not run")
    ]
    told = ", ".join(f"{count} {verdict}" for count, verdict in counts if count)
    return f"{told}; {duration(selftest.duration_s)}. Steps in the shape of: {selftest.model or 'nothing'}."


def _measured(row: ProbeResult) -> str:
    if row.verdict == "not run":
        return row.why
    told = [figures_text(row.values), *(note.rstrip(".") for note in dict.fromkeys(row.notes))]
    if row.verdict == "failed":
        return told[0] or "see below"
    return ". ".join(filter(None, told)) or "as wanted"


def figures_text(values: Sequence[Measurement]) -> str:
    """The figures, those of one name together: `product 612 to 640 TFLOP/s, copy 2.81 TiB/s`."""
    told = []
    for name in dict.fromkeys(value.name for value in values):
        own = [value.value for value in values if value.name == name]
        unit = next(value.unit for value in values if value.name == name)
        if name in _LEFT_OUT or (name in _LEFT_OUT_AT_ZERO and not any(own)):
            continue
        if unit == "yes":
            text = "yes" if all(own) else "no"
        else:
            low, high = _quantity(min(own), unit), _quantity(max(own), unit)
            of_low, of_high = low.rpartition(" "), high.rpartition(" ")
            start = of_low[0] if of_low[2] == of_high[2] and of_low[0] else low
            text = low if low == high else f"{start} to {high}"
        told.append(f"{name.replace('_', ' ')} {text}")
    return ", ".join(told)


def _quantity(value: float, unit: str) -> str:
    if unit == "bytes":
        return size(value)
    if unit == "bytes/s":
        return f"{size(value)}/s"
    if unit == "s":
        return duration(value) if value >= 1 else f"{1000 * value:.3g} ms"
    if unit == "FLOP/s":
        tera = value >= 1e12
        return f"{number(value / (1e12 if tera else 1e9))} {'T' if tera else 'G'}FLOP/s"
    if unit == "cosine":
        return f"{value:.4f}"
    shown = f"{int(value):,}" if value == int(value) else number(value)
    return f"{shown} {unit}".rstrip()
