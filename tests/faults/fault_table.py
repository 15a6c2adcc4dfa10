"""Makes docs/proofs/faults.md from the rows that the fault tests left: `python tests/faults/fault_table.py`.

Without arguments it prints the page. With `--write FILE` it writes it, but not with a row that did not pass. Exits with
1 where a row failed, or there is none.
"""

import argparse
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from fault_rows import ROWS_FOLDER, FaultRow, read_rows

_HEAD = """# Faults, one at a time

    make faults

Each row is a test in `tests/faults/`. It puts a real fault into real parts (processes, containers, servers, disks) of a
small pipeline, and fails unless everything that the row says was measured in that run. CI repeats a part of them."""
AREAS = ("crashes", "containers", "training", "disk and memory", "artifacts", "services", "people and clocks")


def page(rows: list[FaultRow]) -> str:
    """The page: where it was measured, and a heading and a table per area."""
    parts = [_HEAD, _where(rows)]
    known = [*AREAS, *sorted({row.area for row in rows} - set(AREAS))]
    for area in known:
        of_area = [row for row in rows if row.area == area]
        if of_area:
            parts += [f"## {area.capitalize()}", _rows(of_area)]
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
    command = ["git", "-C", str(ROWS_FOLDER), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return (
        f"{passed} of {len(rows)} faults passed on {datetime.now(UTC):%Y-%m-%d}, commit {commit}: {os.cpu_count()} "
        f"cores, no GPU, Python {platform.python_version()}, {versions}. Seconds are of the run that "
        "made each row, on a machine that did other work beside it."
    )


def main() -> int:
    """Print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    rows = read_rows()
    sys.stdout.write(page(rows) + "\n")
    bad = [row for row in rows if row.outcome != "passed"]
    if arguments.write and rows and not bad:
        arguments.write.write_text(f"{page(rows)}\n", encoding="utf-8")
    return 1 if not rows or any(row.outcome == "FAILED" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
