"""Ways measured turn about on several draws, and how many times faster ours is, with its spread.

A draw is a sample of the data, named by its seed. A round measures the ways on every draw. A ratio is made of two times
of one draw in one round, so what slows the whole machine falls out. Its spread has two parts, which are told apart:
over the data (medians of the draws) and over the clock (rounds of one draw).
"""

import json
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

Run = dict[str, Any]
# Name of a way → its measurements: at least `seconds` and `memory`, with the `draw` and the `round` they belong to.
Runs = dict[str, list[Run]]
Measure = Callable[[str, Path], Run]

SEEDS = (1, 2, 3, 4, 5)
# Settings of a peer are tried on this draw, which is never compared.
CALIBRATION_SEED = 0
# Settings within this share of the fastest are measured twice more.
_CLOSE = 0.1


@dataclass(frozen=True)
class Ratio:
    """How many times longer than ours a way takes.

    Attributes:
        of_draws: for each draw the median over its rounds.
        clock: how far apart the rounds of one draw are, (most - least) / median, in the draw where that is most; 0
            if every draw was measured once.

    Example: rounds 2.0 and 2.2 on one draw, 3.0 and 3.0 on another: of draws 2.1 and 3.0, so 2.55; clock 0.095.
    """

    of_draws: tuple[float, ...]
    clock: float

    @property
    def median(self) -> float:
        """The median over the draws."""
        return float(statistics.median(self.of_draws))

    @property
    def clock_shown(self) -> str:
        """The spread over rounds as a table has it: a dash if every draw was measured once."""
        return f"{self.clock:.0%}" if self.clock else "–"

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.of_draws):.2f} to {max(self.of_draws):.2f})"


def ratio(runs: Runs, name: str, *, ours: str) -> Ratio:
    """Compare a way with ours, over the draws and rounds in which both were measured.

    Raises:
        ValueError: no draw has both in one round.
    """
    own = {(run["draw"], run["round"]): run["seconds"] for run in runs[ours]}
    of_draw: defaultdict[int, list[float]] = defaultdict(list)
    for run in runs[name]:
        if (place := (run["draw"], run["round"])) in own:
            of_draw[run["draw"]].append(run["seconds"] / own[place])
    if not of_draw:
        raise ValueError(f"{name} and {ours} were never measured in one round of one draw.")
    clock = max((max(found) - min(found)) / statistics.median(found) for found in of_draw.values())
    return Ratio(tuple(statistics.median(found) for found in of_draw.values()), clock)


def chance_of_enclosing_median(num_draws: int) -> float:
    """Return how often the least and the most of so many draws enclose the median of all draws.

    Example: 5 draws: all on one side of the median in 2 of 2⁵ cases, so 0.9375.
    """
    return float(1 - 2.0 ** (1 - num_draws))


def medians_of_draws(runs: Sequence[Run], figure: str) -> list[float]:
    """Return that figure of each draw: the median over its rounds."""
    of_draw: defaultdict[int, list[float]] = defaultdict(list)
    for run in runs:
        of_draw[run["draw"]].append(run[figure])
    return [float(statistics.median(found)) for found in of_draw.values()]


def order_of(ways: Sequence[str], *, draw: int, round_number: int) -> list[str]:
    """Return the ways in an order drawn for the draw; every second round has it backwards.

    So of two ways each is the first in one of two rounds.
    """
    drawn = list(ways)
    random.Random(draw).shuffle(drawn)  # noqa: S311 - an order, no secret
    return drawn if round_number % 2 else drawn[::-1]


def alternate(
    ways: Sequence[str],
    *,
    folders: Mapping[int, Path],
    rounds: int,
    measure: Measure,
    once: Collection[str] = (),
    in_order: bool = False,
) -> Runs:
    """Measure each way on each draw in each round, the order drawn anew for each draw.

    Args:
        folders: what `measure` reads, for each draw.
        once: ways that only the first round measures, as they take long and are far from ours.
        in_order: keep the order of `ways`, as each needs what the one before it left.
    """
    found: Runs = {name: [] for name in ways}
    for number in range(1, rounds + 1):
        for draw, folder in folders.items():
            for name in ways if in_order else order_of(ways, draw=draw, round_number=number):
                if number == 1 or name not in once:
                    found[name].append({**measure(name, folder), "draw": draw, "round": number})
    return found


def in_its_own_process(module: str, options: Sequence[str] = ()) -> Measure:
    """Return a function that measures a way by `python -m MODULE --measure WAY --folder FOLDER` with these options.

    The last line that the process prints is JSON.
    """

    def measure(name: str, folder: Path) -> Run:
        command = [sys.executable, "-m", module, "--measure", name, "--folder", str(folder), *options]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        run: Run = json.loads(done.stdout.splitlines()[-1])
        print(f"{folder.name}: {name}: {run['seconds']:.1f} s", file=sys.stderr, flush=True)
        return run

    return measure


@dataclass(frozen=True)
class Tried:
    """What each setting of a peer took on the draw of calibration.

    Attributes:
        seconds: of each setting.
        runs: the first measurement of each setting, whose results must agree.
    """

    seconds: Mapping[str, float]
    runs: Mapping[str, Run]

    @property
    def best(self) -> str:
        """The fastest setting."""
        return min(self.seconds, key=lambda name: self.seconds[name])

    def line(self, peer: str) -> str:
        """Return a sentence for the page: each setting with its seconds."""
        each = "; ".join(
            f"{name} {taken:.1f} s" for name, taken in sorted(self.seconds.items(), key=lambda one: one[1])
        )
        return f"Settings of {peer}, tried on a draw that is not compared: {each}. The fastest is compared."


def tried(settings: Sequence[str], *, folder: Path, measure: Measure) -> Tried:
    """Measure each setting once, and those close to the fastest twice more, of which the median counts."""
    runs = {name: {**measure(name, folder), "draw": CALIBRATION_SEED, "round": 1} for name in settings}
    first = {name: run["seconds"] for name, run in runs.items()}
    close = [name for name, taken in first.items() if taken <= (1 + _CLOSE) * min(first.values())]
    if len(close) == 1:
        return Tried(first, runs)
    again = [{name: measure(name, folder)["seconds"] for name in names} for names in (close[::-1], close)]
    seconds = {
        name: statistics.median([taken, *(found[name] for found in again if name in found)])
        for name, taken in first.items()
    }
    return Tried(seconds, runs)


def results_by_draw(runs: Runs, *peers: Tried) -> list[list[Run]]:
    """Return the measurements of each draw together, those of the tried settings too: their results must agree."""
    of_draw: defaultdict[int, list[Run]] = defaultdict(list)
    for run in (*chain.from_iterable(runs.values()), *chain.from_iterable(peer.runs.values() for peer in peers)):
        of_draw[run["draw"]].append(run)
    return list(of_draw.values())


def places_of(drawn: Sequence[float], every: Sequence[float]) -> str:
    """Return where the measured draws' figures lie among those of many seeds."""
    low, middle, high = np.percentile(every, [5, 50, 95])
    shares = sorted(float(np.mean(np.asarray(every) <= value)) for value in drawn)
    values = ", ".join(f"{value:.2f}" for value in sorted(drawn))
    return (
        f"{middle:.2f} in the median of {len(every)} seeds (5 to 95 %: {low:.2f} to {high:.2f}); the measured draws "
        f"have {values}, which {', '.join(f'{at:.0%}' for at in shares)} do not exceed"
    )


def peak_bytes() -> int:
    """Return the peak memory of this program so far.

    By `VmHWM`, since `ru_maxrss` begins with the memory of the process that started the program.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM; peak memory is measured on Linux alone.")
