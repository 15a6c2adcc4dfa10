"""How much too good a checkpoint looks on the pairs that chose it, and what `optimism_of_choice` says of it.

`python -m benchmarks.truth.choice` prints the table. The checkpoints of a training are equally good; the one with the
lowest log loss is chosen, as the trainer does, and its accuracy is measured on the same pairs.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from containers.evals.statistics import optimism_of_choice

_NUM_CHECKPOINTS = 10
_TRUE_ACCURACY = 0.7


@dataclass(frozen=True)
class ChoiceCell:
    """Points by which the accuracy is too high: in the mean of the draws, and by the formula."""

    num_pairs: int
    likeness: float
    found: float
    said: float


def choice_cells(*, draws: int, seed: int) -> Iterator[ChoiceCell]:
    """Yield a cell for each number of pairs and likeness of two checkpoints' margins."""
    from scipy import special

    generator = np.random.default_rng(seed)
    mean = float(special.ndtri(_TRUE_ACCURACY))
    for likeness in (0.95, 0.9, 0.7):
        for size in (50, 200, 500, 2000):
            optimism = []
            for _ in range(draws):
                shared = generator.normal(size=(1, size))
                own = generator.normal(size=(_NUM_CHECKPOINTS, size))
                margins = mean + np.sqrt(likeness) * shared + np.sqrt(1 - likeness) * own
                chosen = int(np.logaddexp(0, -margins).mean(axis=1).argmin())
                optimism.append(float((margins[chosen] > 0).mean()) - _TRUE_ACCURACY)
            error = (_TRUE_ACCURACY * (1 - _TRUE_ACCURACY) / size) ** 0.5
            said = optimism_of_choice(error, num_choices=_NUM_CHECKPOINTS)
            yield ChoiceCell(size, likeness, float(np.mean(optimism)), said)


def choice_table(*, draws: int, seed: int) -> str:
    """The cells as a Markdown table."""
    rows = [
        f"| {cell.num_pairs:,} | {cell.likeness:g} | {100 * cell.found:.1f} | {100 * cell.said:.1f} |"
        for cell in choice_cells(draws=draws, seed=seed)
    ]
    heads = "| pairs | likeness of margins | too high, points | the certificate says, about |\n|---:|---:|---:|---:|"
    return "\n".join([heads, *rows])


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=2000, help="trainings of each setting (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    print(choice_table(draws=options.draws, seed=options.seed))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
