"""Makes the table of docs/reliability.md from the rows that the fault tests left: `python tests/faults/fault_table.py`.

Without arguments it prints the table. With `--write FILE` it replaces what stands between the markers in FILE, and
refuses to do so with a row that did not pass. Exits with 1 where a row failed, or there is none.
"""

import argparse
import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from fault_rows import FaultRow, read_rows

BEGIN = "<!-- made by tests/faults/fault_table.py: do not edit -->"
END = "<!-- end of the made part -->"
AREAS = ("crashes", "containers", "training", "disk and memory", "artifacts", "services", "people and clocks")


def table(rows: list[FaultRow]) -> str:
    """Markdown: a heading and a table per area, and where it was measured."""
    parts = [_where(rows)]
    known = [*AREAS, *sorted({row.area for row in rows} - set(AREAS))]
    for area in known:
        of_area = [row for row in rows if row.area == area]
        if of_area:
            parts += [f"### {area.capitalize()}", _rows(of_area)]
    return "\n\n".join(parts)


def _rows(rows: list[FaultRow]) -> str:
    head = ("Fault", "Done to", "What happens", "Lost", "Repeated", "Recovery")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        seen = row.seen if row.outcome == "passed" else f"**{row.outcome}**"
        cells = (row.fault, row.parts, seen, row.lost, row.repeated, f"{row.recovery_s:.1f} s")
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


def _where(rows: list[FaultRow]) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("prefect", "mlflow", "docker", "trl", "torch"))
    passed = sum(row.outcome == "passed" for row in rows)
    return (
        f"{passed} of {len(rows)} faults passed on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, no GPU, "
        f"Python {platform.python_version()}, {versions}. Seconds are of the run that "
        "made each row, on a machine that did other work beside it."
    )


def main() -> int:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    rows = read_rows()
    sys.stdout.write(table(rows) + "\n")
    bad = [row for row in rows if row.outcome != "passed"]
    if arguments.write and rows and not bad:
        text = arguments.write.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        tail = rest.partition(END)[2]
        arguments.write.write_text(f"{head}{BEGIN}\n\n{table(rows)}\n\n{END}{tail}", encoding="utf-8")
    return 1 if not rows or any(row.outcome == "FAILED" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
