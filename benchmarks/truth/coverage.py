"""How often intervals hold the truth: simulated prompts, votes and suites, through the functions that certificates use.

`python -m benchmarks.truth.coverage` prints the tables. A cell draws the same figure many times from a
known truth; its coverage is the share of intervals that hold it. 95 % is wanted, less than 93 % is a fault.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from containers.evals.intervals import LinearFigure, mean_interval, share_interval
from containers.evals.paired import clustered_difference
from containers.evals.suites.base import Intervals
from containers.evals.suites.figures import mean_estimate, weighted

_CONFIDENCE = 0.95
_WANTED = 0.93
_SHARES = (0.5, 0.7, 0.9, 0.95, 0.98, 0.99)
_SETTINGS = Intervals(confidence=_CONFIDENCE, num_bootstrap=100, seed=0)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """One setting: what was drawn, how often the interval held the truth, and its width against a normal one."""

    setting: str
    coverage: float
    relative_width: float


def share_cells(generator: np.random.Generator, draws: int) -> Iterator[Cell]:
    """Shares over prompts, with 1 to 20 votes each, that agree not at all, in part, or wholly."""
    for votes, agreement in (
        (1, 0.0),
        (2, 0.2),
        (2, 1.0),
        (5, 0.2),
        (5, 0.6),
        (5, 1.0),
        (20, 0.2),
        (20, 0.6),
        (20, 1.0),
    ):
        for items in (20, 50, 100, 200, 500, 2000):
            prompts = items // votes
            for true in _SHARES if prompts >= 3 else ():
                sums = _votes(generator, true, (draws, prompts), votes, agreement)
                figures = [_mean_of(row, np.full(prompts, float(votes))) for row in sums]
                name = f"{prompts:,} prompts × {votes} votes, agreement {agreement:g}, true {true:g}"
                yield _cell(name, true, figures, share_interval)


def weighted_cells(generator: np.random.Generator, draws: int) -> Iterator[Cell]:
    """Weighted means of subsets, as suites score them."""
    for subsets, items in ((2, 50), (4, 100), (4, 500), (23, 500), (23, 2000)):
        weights = generator.dirichlet(np.ones(subsets))
        for true in _SHARES:
            rates = np.clip(true + (1 - true) * 0.9 * np.linspace(-1, 1, subsets), 0.01, 1)
            size, figures = max(2, items // subsets), []
            for _ in range(draws // 4):
                parts = []
                for place, (weight, rate) in enumerate(zip(weights, rates, strict=True)):
                    credits = (generator.random(size) < rate).astype(float).tolist()
                    named = [(credit, f"{place} {number}") for number, credit in enumerate(credits)]
                    parts.append((float(weight), mean_estimate(named, stratum=str(place))))
                figures.append(weighted(parts).figure)
            yield _cell(f"{subsets} subsets of {size}, about {true:g}", float(weights @ rates), figures, share_interval)


def small_subset_cells(generator: np.random.Generator, draws: int) -> Iterator[Cell]:
    """Plain means of subsets of which some have a few items: files that were cut, items that are too long."""
    for sizes in ((200, 200, 200, 1), (200, 200, 200, 2), (200, 200, 200, 5), (50, 50, 3, 1), (5, 5, 5, 5), (2, 2, 2)):
        for true in _SHARES:
            figures = []
            for _ in range(draws // 4):
                parts = []
                for place, size in enumerate(sizes):
                    credits = (generator.random(size) < true).astype(float).tolist()
                    named = [(credit, f"{place} {number}") for number, credit in enumerate(credits)]
                    parts.append((1.0, mean_estimate(named, stratum=str(place))))
                figures.append(weighted(parts).figure)
            yield _cell(f"subsets of {', '.join(map(str, sizes))}, true {true:g}", true, figures, share_interval)


def win_rate_cells(generator: np.random.Generator, draws: int) -> Iterator[Cell]:
    """Win rates per prompt, of 4 × 4 completions, some of them ties."""
    for prompts in (10, 24, 48, 200):
        for ties, rate in ((0.0, 0.6), (0.5, 0.6), (0.9, 0.8), (0.98, 0.8)):
            true = (1 - ties) * rate + ties / 2
            skill = generator.beta(rate * 4, (1 - rate) * 4, size=(draws, prompts))
            decided = generator.binomial(16, 1 - ties, size=(draws, prompts))
            sums = generator.binomial(decided, skill) + (16 - decided) / 2
            figures = [_mean_of(row / 16, np.ones(prompts)) for row in sums]
            yield _cell(f"{prompts} prompts, {ties:.0%} ties, true {true:.3f}", true, figures, share_interval)


def mean_cells(generator: np.random.Generator, draws: int) -> Iterator[Cell]:
    """Means of rewards, KL and lengths: normal, with heavy tails, skewed."""
    kinds: dict[str, tuple[float, Callable[[tuple[int, int]], Floats]]] = {
        "normal": (0.0, lambda size: generator.normal(size=size)),
        "heavy tails (t, 3 degrees)": (0.0, lambda size: generator.standard_t(3, size=size)),
        "skewed (exponential)": (1.0, lambda size: generator.exponential(size=size)),
    }
    for kind, (true, draw) in kinds.items():
        for prompts in (3, 5, 10, 24, 50, 200):
            values = draw((draws, prompts))
            figures = [_mean_of(row, np.ones(prompts)) for row in values]
            yield _cell(f"{prompts} prompts, {kind}", true, figures, mean_interval)


def false_wins(generator: np.random.Generator, draws: int) -> Iterator[Cell]:
    """How often the rule for champions crowns one of two equal models; `coverage` is the share of those not crowned."""
    for prompts, discordant in ((200, 0.12), (500, 0.06), (500, 0.12), (500, 0.2), (2000, 0.12)):
        names, crowned = [str(place) for place in range(prompts)], 0
        for _ in range(draws // 2):
            drawn = generator.choice([-1.0, 0.0, 1.0], p=[discordant / 2, 1 - discordant, discordant / 2], size=prompts)
            found = clustered_difference(drawn.tolist(), names, confidence=_CONFIDENCE)
            crowned += (found.difference.ci_low or 0.0) > 0 and found.p_value < 1 - _CONFIDENCE
        yield Cell(f"{prompts:,} prompts, {discordant:.0%} discordant", 1 - crowned / (draws // 2), math.nan)


def _votes(generator: np.random.Generator, true: float, size: tuple[int, int], votes: int, agreement: float) -> Floats:
    """[D, C] right votes of each prompt; `agreement` is the correlation of two votes on one prompt."""
    if agreement == 1:
        return generator.binomial(1, true, size=size).astype(np.float64) * votes
    spread = 1 / agreement - 1 if agreement else 0.0
    rates = generator.beta(true * spread, (1 - true) * spread, size=size) if agreement else np.full(size, true)
    found: Floats = generator.binomial(votes, rates).astype(np.float64)
    return found


def _mean_of(sums: Floats, sizes: Floats) -> LinearFigure:
    """As `clustered_mean`, from sums."""
    total, size = float(sizes.sum()), sums.size
    mean = float(sums.sum() / total)
    return LinearFigure(mean, math.sqrt(size / (size - 1)) * (sums - mean * sizes) / total, sizes / total)


def _cell(
    name: str, true: float, figures: Sequence[LinearFigure], interval: Callable[..., tuple[float, float]]
) -> Cell:
    found = [interval(figure, confidence=_CONFIDENCE) for figure in figures]
    held = sum(low <= true <= high for low, high in found) / len(found)
    spread = float(np.std([figure.value for figure in figures]))
    width = float(np.mean([high - low for low, high in found]))
    return Cell(name, held, width / (3.92 * spread) if spread else math.nan)


def _width(cell: Cell) -> str:
    return "–" if math.isnan(cell.relative_width) else f"{cell.relative_width:.2f}"


_KINDS = {
    "Shares": share_cells,
    "Weighted scores": weighted_cells,
    "Scores with small subsets": small_subset_cells,
    "Win rates": win_rate_cells,
    "Means": mean_cells,
    "Equal models that are not crowned": false_wins,
}


def coverage_text(*, draws: int, seed: int) -> tuple[str, int]:
    """The lowest cells of each kind as Markdown tables, and the number of cells that cover less than wanted."""
    parts, short = [], 0
    for title, cells_of in _KINDS.items():
        cells = sorted(cells_of(np.random.default_rng(seed), draws), key=lambda cell: cell.coverage)
        lines = [f"| {cell.setting} | {cell.coverage:.1%} | {_width(cell)} |" for cell in cells[:12]]
        short += sum(cell.coverage < _WANTED for cell in cells) if title != "Means" else 0
        mean = np.mean([cell.coverage for cell in cells])
        parts.append(
            f"**{title}**: {len(cells)} settings, {mean:.1%} on average; the lowest:\n\n"
            "| setting | coverage | width, normal interval 1 |\n|---|---:|---:|\n" + "\n".join(lines)
        )
    return "\n\n".join(parts), short


def main() -> int:
    """Print the tables; 1 if a kind of share covers less than wanted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=2000, help="figures of each cell (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    text, short = coverage_text(draws=options.draws, seed=options.seed)
    print(text)
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
