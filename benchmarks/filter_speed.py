"""Measure the rows per second of filter_dataset on one core, and the time of each step. Figures: filter_speed.md.

    python -m benchmarks.filter_speed [--data FOLDER] [--beside TREE] [--write]

FOLDER has the files named in `filter_rows`; without it, they are made with a seed (`made_data`). Their rows are
repeated until there are as many as HelpSteer3 has. In each copy every seventh word is spelt otherwise, so that no copy
is a duplicate and every filter has its whole work. The stage itself runs, each time in its own process (`filter_run`);
seconds are those of the CPU. Three kinds of runs alternate: as it is, watched by step, and with detection of the
language on an eighth of the rows. With --beside, another copy of the project (an older commit: `git archive COMMIT |
tar x -C TREE`) filters the same rows alternately with this one. The page has the ratio, and whether both write the same
files.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.filter_rows import SUITES, write_rows
from benchmarks.made_data import described, folder_of
from benchmarks.provenance import PROJECT, commit
from benchmarks.speed_table import write_part

PAGE = Path(__file__).with_suffix(".md")
NUM_FEW_ROWS = 600
# Detection takes ten times as long as all the rest.
LANGUAGE_SHARE = 8
STEPS = (
    "read",
    "schema",
    "polarity",
    "language",
    "filters",
    "repetition",
    "contamination",
    "near-duplicates",
    "similar prompts",
    "split",
    "write",
)

Runs = list[dict[str, Any]]


def in_a_process_of_its_own(
    rows: Path, few_rows: Path, folder: Path, *options: str, tree: Path = PROJECT
) -> dict[str, Any]:
    """Run the project in `tree` with one thread, in a process with its own peak memory."""
    suites = [item for name, file in SUITES for item in ("--suite", f"{name}={folder / file}")]
    program = PROJECT / "benchmarks" / "filter_run.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
    command = [sys.executable, str(program), str(rows), str(few_rows), *suites, *options]
    made = subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
    found: dict[str, Any] = json.loads(made.stdout)
    return found


def rate(runs: Runs, seconds_of: Callable[[dict[str, Any]], float]) -> str:
    """Return rows a second: the median, and the slowest and fastest run."""
    rates = sorted(run["rows"] / seconds_of(run) for run in runs)
    return f"{statistics.median(rates):,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})"


def row_s(run: dict[str, Any]) -> float:
    """Return the seconds for one more row; the run on few rows gives the cost that does not grow with the rows."""
    seconds: float = (run["seconds"] - run["few_s"]) / (run["rows"] - run["few_rows"])
    return seconds


def ratio(new: Runs, old: Runs) -> str:
    """Return how many times as fast the new runs are, each against its old one: the median, least and most."""
    ratios = sorted(before["seconds"] / after["seconds"] for after, before in zip(new, old, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def lines_of(runs: Runs, watched: Runs, with_language: Runs, beside: Runs, *, rows: str, load: str) -> Iterator[str]:
    """Return the figures as a part of the page; `beside` are runs of another tree."""
    median = statistics.median
    first = runs[0]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in first["dropped"].items())
    loading, start = median(run["loading_s"] for run in runs), median(run["before_mib"] for run in runs)
    fixed_s = median(run["few_s"] - run["few_rows"] * row_s(run) for run in runs)
    yield f"""{first["rows"]:,} {rows} (`helpsteer3_schema_train`, `hh_helpful_train` and `hh_harmless`), repeated with
every seventh word spelt otherwise, so that copies are no duplicates of one another and no filter has less to do; as one
jsonl file, with two suites. The stage itself runs, in a process of its own each time, {len(runs)} times as it is, as
often watched by step, and as often with detection of the language on {with_language[0]["rows"]:,} rows, by turns. Rows
are per second of CPU time of one core: the median, in brackets the slowest and the fastest run. A run on {NUM_FEW_ROWS}
rows goes before each, which loads libraries and tables; it takes {loading:.1f} s, and is left out.

Load average {load} while it ran (above 1, other work shared cores and caches with it, and a quiet machine is faster);
pyarrow {version("pyarrow")}, orjson {version("orjson")}, rensa {version("rensa")}, numpy {version("numpy")}.

| run | rows a second and core | peak memory, MiB |
| --- | ---: | ---: |"""
    kinds = [("without language detection", runs), ("with language detection", with_language)]
    for name, of_kind in [*kinds, *([("the tree beside it, without", beside)] if beside else [])]:
        peak = median(run["peak_mib"] for run in of_kind)
        yield f"| {name} | {rate(of_kind, lambda run: run['seconds'])} | {peak:,.0f} |"
    yield f"""
Of each run, {fixed_s:.2f} s do not grow with the rows (the suites, the plot); one row more takes
{1e6 * median(row_s(run) for run in runs):.0f} µs, which are {rate(runs, lambda run: run["rows"] * row_s(run))} rows a
second. Of the memory, {start:,.0f} MiB are Python and its libraries before the first row."""
    if beside:
        yield from _comparison(runs, beside)
    yield from _steps(watched, with_language)
    yield f"""
`schema` makes a checked row of each object; `filters` are the columns' language, ties, equal responses, control tokens
and lengths; rows of each step are those that were read. The clock that watches the steps takes about 3 µs a row itself,
in `read` and `schema`. Dropped: {dropped}."""


def _comparison(runs: Runs, beside: Runs) -> Iterator[str]:
    same = all(run["digests"] == runs[0]["digests"] for run in [*runs, *beside])
    files = f"Every one of the {len(runs[0]['digests'])} files that they write is" if same else "What they write is not"
    yield f"\nThe tree beside it (--beside TREE) is an older commit. This one takes {ratio(runs, beside)} times"
    yield f"as many rows a second without detection, run for run. {files} the same to the byte."


def _steps(watched: Runs, with_language: Runs) -> Iterator[str]:
    yield "\n| step | rows a second and core | share of the run without detection |\n| --- | ---: | ---: |"
    whole = statistics.median(run["seconds"] for run in watched)
    for step in STEPS:
        runs = with_language if step == "language" else watched
        share = f"{statistics.median(run['steps'][step] for run in runs) / whole:.0%}" if step != "language" else ""
        yield f"| {step} | {rate(runs, lambda run, step=step: run['steps'][step])} | {share} |"  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the files named above; made rows without it")
    parser.add_argument("--rows", type=int, default=38_459, help="rows to filter; 38,459 unless given, as HelpSteer3")
    parser.add_argument("--alternations", type=int, default=5, help="runs of each kind; 5 unless given")
    parser.add_argument("--beside", type=Path, help="another copy of the project, to be compared with")
    parser.add_argument("--write", action="store_true", help=f"write into {PAGE.name}; without it, print")
    given, measured = parser.parse_args(), commit()
    loads = [os.getloadavg()[0]]
    runs, watched, with_language, beside = Runs(), Runs(), Runs(), Runs()
    with tempfile.TemporaryDirectory() as scratch, folder_of(given.data) as folder:
        rows, few, part = (Path(scratch) / f"{name}.jsonl" for name in ("rows", "few", "part"))
        for path, count in ((rows, given.rows), (few, NUM_FEW_ROWS), (part, given.rows // LANGUAGE_SHARE)):
            write_rows(path, folder, num_rows=count)
        for _ in range(given.alternations):
            runs.append(in_a_process_of_its_own(rows, few, folder))
            if given.beside is not None:
                beside.append(in_a_process_of_its_own(rows, few, folder, tree=given.beside.resolve()))
            watched.append(in_a_process_of_its_own(rows, few, folder, "--steps"))
            with_language.append(in_a_process_of_its_own(part, few, folder, "--language", "--steps"))
            loads.append(os.getloadavg()[0])
    rows_are, load = described(given.data), f"{min(loads):.1f} to {max(loads):.1f}"
    text = "\n".join(lines_of(runs, watched, with_language, beside, rows=rows_are, load=load))
    print(text)
    if given.write:
        module, title, heading = "benchmarks.filter_speed", "How fast filter_dataset is", rows_are.capitalize()
        write_part(PAGE, text, module=module, title=title, heading=heading, measured=measured)


if __name__ == "__main__":
    main()
