"""How near the calibration error comes to the truth, and how often good labels are refused: simulated pairs and rows.

    python -m benchmarks.truth.calibration

A perfect model is right exactly as often as it predicts. The others are too sure, not sure enough, or wrong in one bin;
their true error is known, given the bins. Pairs of one prompt are right together as one draw of a normal number has it,
not as the estimate assumes. The second table refuses a data set whose labels agree with the scores beside them.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from containers.contracts.certificate import CalibrationBin
from containers.evals.calibration import calibration_of
from containers.evals.polarity import score_agreement
from containers.evals.suites.base import Intervals

_CONFIDENCE = 0.95
_NUM_BINS = 10
_SPREAD = 2.0
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CalibrationCell:
    """Means over simulated certificates of one model; errors are shares.

    Attributes:
        plug_in: over ten even bins of which none is merged, as certificates had it before.
        estimate: the error of the certificate, without the part of chance.
        coverage: share of intervals that hold the true error.
        width: of the interval.
        above_perfect: share of certificates whose plug-in error is above what 19 of 20 perfect models show.
    """

    setting: str
    true: float
    plug_in: float
    estimate: float
    coverage: float
    width: float
    above_perfect: float


@dataclass(frozen=True)
class PolarityCell:
    """Shares of data sets that are refused; `before` by the point below one half, `after` by the whole interval."""

    setting: str
    before: float
    after: float
    warned: float


def calibration_cells(
    seed: int, draws: int, *, sizes: tuple[int, ...] = (50, 200, 1000, 5000)
) -> Iterator[CalibrationCell]:
    """Each number of pairs, alone or four of a prompt, by each kind of model; fewer draws of many pairs."""
    for size in sizes:
        for votes, alike in ((1, 0.0), (4, 0.3)):
            for kind in ("perfect", "too sure", "much too sure", "not sure enough", "wrong above 90 %"):
                generator = np.random.default_rng([seed, size, votes])
                found = [
                    _certified(generator, size // votes, votes, alike, kind)
                    for _ in range(max(20, min(draws, draws * 1000 // size)))
                ]
                means = np.mean(found, axis=0).tolist()
                prompts = f"{size // votes:,} prompts × {votes}" if votes > 1 else f"{size:,} prompts"
                yield CalibrationCell(f"{prompts}, {kind}", *means)


def polarity_cells(seed: int, draws: int, *, sizes: tuple[int, ...] = (10, 11, 50, 200)) -> Iterator[PolarityCell]:
    """Each number of rows, each of its own prompt or five of one, by the true agreement."""
    for size in sizes:
        for rows, alike in ((1, 0.0), (5, 0.3)) if size >= 50 else ((1, 0.0),):
            for true in (0.4, 0.55, 0.6):
                generator = np.random.default_rng([seed, size, rows])
                prompts = [str(place // rows) for place in range(size)]
                found = []
                for _ in range(draws):
                    votes = _right(generator, np.full(size, true), rows, alike)
                    after = score_agreement("", (votes > 0).tolist(), prompts, confidence=_CONFIDENCE)
                    before = size >= 10 and votes.mean() < 0.5
                    found.append((before, after.is_inverted, after.says_nothing))
                means = np.mean(found, axis=0).tolist()
                each = f", {rows} of a prompt" if rows > 1 else ""
                yield PolarityCell(f"{size} rows{each}, true agreement {true:.0%}", *means)


def calibration_table(cells: Iterator[CalibrationCell]) -> str:
    """The cells as a Markdown table."""
    return _table(
        ("setting", "true", "plug-in, ten bins", "estimate", "coverage", "mean width", "above a perfect model's 95 %"),
        (
            (cell.setting, cell.true, cell.plug_in, cell.estimate, cell.coverage, cell.width, cell.above_perfect)
            for cell in cells
        ),
    )


def polarity_table(cells: Iterator[PolarityCell]) -> str:
    """The cells as a Markdown table."""
    return _table(
        ("setting", "refused by the point", "refused by the interval", "warned"),
        ((cell.setting, cell.before, cell.after, cell.warned) for cell in cells),
    )


def _certified(
    generator: np.random.Generator, prompts: int, votes: int, alike: float, kind: str
) -> tuple[float, float, float, bool, float, bool]:
    """The true error, and what a certificate says of one draw of pairs: the fields of `CalibrationCell`."""
    sizes = np.abs(generator.normal(size=prompts * votes)) * _SPREAD
    predicted = _sigmoid(sizes)
    true = {
        "perfect": predicted,
        "too sure": _sigmoid(sizes / 1.5),
        "much too sure": _sigmoid(sizes / 3),
        "not sure enough": _sigmoid(sizes * 2),
        "wrong above 90 %": np.where(predicted > 0.9, predicted - 0.1, predicted),
    }[kind]
    right = _right(generator, true, votes, alike)
    names = [str(place // votes) for place in range(sizes.size)]
    settings = Intervals(confidence=_CONFIDENCE, num_bootstrap=100, seed=int(generator.integers(2**31)))
    found = calibration_of(np.where(right > 0, sizes, -sizes).tolist(), names, settings)
    error = _error_in(found.bins, predicted, true)
    low, high = found.error.ci_low or 0.0, found.error.ci_high or 0.0
    holds = low - 1e-9 <= error <= high + 1e-9
    above = found.chance.plug_in > found.chance.perfect_high + 1e-9
    return error, _plug_in(predicted, right), found.error.value, holds, high - low, above


def _error_in(bins: Sequence[CalibrationBin], predicted: Floats, true: Floats) -> float:
    """The error of the true shares in the certificate's bins, which hold the pairs in the order of `predicted`."""
    ends = np.cumsum([item.count for item in bins])[:-1]
    gaps = (true - predicted)[np.argsort(predicted, kind="stable")]
    return sum(abs(float(inside.sum())) for inside in np.split(gaps, ends)) / predicted.size


def _plug_in(predicted: Floats, right: Floats) -> float:
    bins = np.minimum(((predicted - 0.5) * 2 * _NUM_BINS).astype(int), _NUM_BINS - 1)
    return float(np.abs(np.bincount(bins, weights=right - predicted)).sum() / predicted.size)


def _right(generator: np.random.Generator, chances: Floats, votes: int, alike: float) -> Floats:
    """[N] 0 or 1; `alike` is the correlation of the normal numbers of two votes on one prompt."""
    from scipy import special

    own, shared = generator.normal(size=chances.size), np.repeat(generator.normal(size=chances.size // votes), votes)
    uniforms = special.ndtr(np.sqrt(alike) * shared + np.sqrt(1 - alike) * own)
    found: Floats = (uniforms < chances).astype(np.float64)
    return found


def _sigmoid(values: Floats) -> Floats:
    found: Floats = 1 / (1 + np.exp(-values))
    return found


def _table(heads: Sequence[str], rows: Iterable[tuple[str, *tuple[float, ...]]]) -> str:
    lines = [" | ".join((name, *(f"{share:.1%}" for share in shares))) for name, *shares in rows]
    return "\n".join(
        f"| {line} |" for line in (" | ".join(heads), "---|" + "|".join(["---:"] * (len(heads) - 1)), *lines)
    )


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=400, help="simulations of each cell (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    print(calibration_table(calibration_cells(options.seed, options.draws)), flush=True)
    print()
    print(polarity_table(polarity_cells(options.seed, 10 * options.draws)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
