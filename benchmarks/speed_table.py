"""Shared parts of the speed benchmarks: alternating measurements of ways, their ratios, and their page."""

import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
import trl

from containers.harness.measure import cpu_model

Run = dict[str, Any]
# Name of a way → its measurements, alternation by alternation: at least `seconds` and `memory`.
Runs = dict[str, list[Run]]

_MIB = 1024**2


def alternate(ways: Sequence[str], *, module: str, folder: Path, rounds: int, options: Sequence[str] = ()) -> Runs:
    """Measure each way `rounds` times, alternately, each time in its own process.

    The process is `python -m MODULE --measure WAY --folder FOLDER`, with these options; its last line is JSON.
    """
    found: Runs = {name: [] for name in ways}
    for number in range(1, rounds + 1):
        for name, runs in found.items():
            command = [sys.executable, "-m", module, "--measure", name, "--folder", str(folder), *options]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {number}: {name}: {runs[-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    return found


def peak_bytes() -> int:
    """Return the peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ratios(runs: Runs, name: str, *, ours: str) -> list[float]:
    """Return how many times longer than ours that way took, alternation by alternation."""
    return [theirs["seconds"] / own["seconds"] for theirs, own in zip(runs[name], runs[ours], strict=True)]


def median(runs: Sequence[Run], figure: str) -> float:
    """Return the median of that figure over the alternations."""
    return float(statistics.median(run[figure] for run in runs))


def table(
    runs: Runs,
    *,
    ours: str,
    before: Sequence[str],
    after: Sequence[str],
    cells: Callable[[str], tuple[list[str], list[str]]],
) -> list[str]:
    """Return a row for each way: its own cells, its seconds, its memory, and how both compare with ours.

    Args:
        before: heads of the columns between the way's name and its seconds.
        after: heads of the columns between seconds and memory.
        cells: returns a way's cells in these columns.
    """
    heads = [*before, "seconds, median", *after, "memory added, MiB", "ours is faster", "ours takes of it"]
    lines = [_line(["way", *heads]), _line(["---", *["---:"] * len(heads)])]
    own_memory = median(runs[ours], "memory")
    for name, measured in runs.items():
        memory = median(measured, "memory")
        compared = ["", ""]
        if name != ours:
            faster = ratios(runs, name, ours=ours)
            compared = [
                f"{statistics.median(faster):.2f} ({min(faster):.2f} to {max(faster):.2f})",
                f"{own_memory / memory:.2f}" if memory else "",
            ]
        first, second = cells(name)
        seconds = f"{median(measured, 'seconds'):.1f}"
        lines.append(_line([name, *first, seconds, *second, f"{memory / _MIB:,.0f}", *compared]))
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def circumstances(rounds: int) -> str:
    """Return machine, versions, alternations and load."""
    return (
        f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, {cpu_model()}; torch "
        f"{torch.__version__}, transformers {transformers.__version__}, trl {trl.__version__}; {rounds} "
        f"alternation{'' if rounds == 1 else 's'}, "
        f"load {os.getloadavg()[0]:.1f}."
    )


def write_part(page: Path, text: str, *, module: str, title: str, heading: str) -> None:
    """Write the text under its heading, with the command that made it; the page's other parts stay."""
    parts = page.read_text(encoding="utf-8").split("\n## ") if page.exists() else [f"# {title}\n"]
    command = f"python -m {module} {shlex.join(sys.argv[1:])}"
    kept = [old for old in parts[1:] if old.splitlines()[0] != heading]
    part = f"{heading}\n\n`{command}`\n\n{text}\n"
    page.write_text("\n## ".join([parts[0].rstrip() + "\n", *kept, part]), encoding="utf-8")
