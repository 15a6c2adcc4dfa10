"""Shared parts of the speed benchmarks: their options, their table, and their page. Ratios: speed_ratios.py."""

import argparse
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.provenance import when_and_where
from benchmarks.speed_ratios import (
    CALIBRATION_SEED,
    SEEDS,
    Run,
    Runs,
    chance_of_enclosing_median,
    medians_of_draws,
    ratio,
)

_MIB = 1024**2
_NUM_COUNTED = 500
_LEAST_DRAWS = 3


def add_options(parser: argparse.ArgumentParser, *, page: Path, rounds: int = 2) -> None:
    """Add the options that every comparison of speeds has."""
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=list(SEEDS), help="a draw of data for each; five unless given"
    )
    parser.add_argument("--rounds", type=int, default=rounds, help=f"of each draw; {rounds} unless given")
    parser.add_argument("--counted", type=int, default=_NUM_COUNTED, help="seeds whose tokens alone are counted")
    parser.add_argument("--write", action="store_true", help=f"write the table into {page.name}")
    parser.add_argument("--folder", help=argparse.SUPPRESS)


def add_rows_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that put rows in the place of random letters."""
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--data", type=Path, help="folder with real rows and the real vocabulary")
    rows.add_argument("--made", action="store_true", help="rows like these, made with a seed")


def chosen_rows(arguments: argparse.Namespace, *, letters: str) -> tuple[str, str]:
    """Return the heading of the page's part, and what the texts are.

    Args:
        letters: what random letters are called there.
    """
    if arguments.data:
        return "Real rows", "real rows, Qwen's vocabulary"
    return ("Made rows", "made rows, a vocabulary as wide as Qwen's") if arguments.made else ("Random text", letters)


def check_seeds(parser: argparse.ArgumentParser, seeds: Sequence[int]) -> None:
    """End the program if the draw of calibration, or one draw twice, is to be compared."""
    if CALIBRATION_SEED in seeds or len(set(seeds)) < len(seeds):
        parser.error(
            f"--seeds {' '.join(map(str, seeds))}: name each once, and not {CALIBRATION_SEED}, on which settings are "
            "tried."
        )


def median(runs: Sequence[Run], figure: str) -> float:
    """Return the median of that figure over all measurements."""
    return float(statistics.median(run[figure] for run in runs))


def whole(runs: Sequence[Run], figure: str) -> float:
    """Return that figure of all draws together, of each its median over rounds."""
    return sum(medians_of_draws(runs, figure))


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
    compared_heads = ["ours is faster", "by the clock", "memory: ours takes of it"]
    heads = [*before, "seconds, all draws", *after, "memory added, MiB", *compared_heads]
    lines = [_line(["way", *heads]), _line(["---", *["---:"] * len(heads)])]
    own_memory = max(medians_of_draws(runs[ours], "memory"))
    for name, measured in runs.items():
        memory = max(medians_of_draws(measured, "memory"))
        compared = ["", "", ""]
        if name != ours:
            faster = ratio(runs, name, ours=ours)
            share = f"{own_memory / memory:.2f}" if memory else ""
            compared = [str(faster), faster.clock_shown, share]
        first, second = cells(name)
        seconds = f"{whole(measured, 'seconds'):.1f}"
        lines.append(_line([name, *first, seconds, *second, f"{memory / _MIB:,.0f}", *compared]))
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def spread_line(num_draws: int, *, once: Sequence[str] = ()) -> str:
    """Return what the columns on ratios mean."""
    text = (
        "Faster: the median over draws of the median over a draw's rounds, in brackets the draws with the least "
        "and the most: spread over data. By the clock: how far rounds of one draw are apart, in the draw where that "
        "is most. Memory: the most of the draws."
    )
    if num_draws >= _LEAST_DRAWS:
        text += (
            f" The least and the most of {num_draws} draws enclose the median of all such draws in "
            f"{chance_of_enclosing_median(num_draws):.0%} of cases."
        )
    return text + (f" Measured in the first round alone: {'; '.join(once)}." if once else "")


def circumstances(rounds: int, *, draws: int = 1) -> str:
    """Return machine, versions, draws, alternations and load."""
    import torch

    return (
        f"{torch.get_num_threads()} threads of {os.cpu_count()} cores; torch {torch.__version__}, transformers "
        f"{version('transformers')}, trl {version('trl')}; {draws} draw{'' if draws == 1 else 's'} of data, {rounds} "
        f"alternation{'' if rounds == 1 else 's'}{'' if draws == 1 else ' each'}, load {os.getloadavg()[0]:.1f}."
    )


def write_part(page: Path, text: str, *, module: str, title: str, heading: str, measured: str) -> None:
    """Write the text under its heading, with its command, date, commit and machine; the page's other parts stay.

    Args:
        measured: the commit when the program began (`provenance.commit`).
    """
    parts = page.read_text(encoding="utf-8").split("\n## ") if page.exists() else [f"# {title}\n"]
    command = f"python -m {module} {shlex.join(sys.argv[1:])}"
    kept = [old for old in parts[1:] if old.splitlines()[0] != heading]
    part = f"{heading}\n\n`{command}`\n\n{when_and_where(measured)}.\n\n{text}\n"
    page.write_text("\n## ".join([parts[0].rstrip() + "\n", *kept, part]), encoding="utf-8")
