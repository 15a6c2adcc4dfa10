"""Contests of models whose truth is known: false wins, vetoes, power, with suites and without.

`python -m benchmarks.truth.contests --draws 400` prints the table. Items are independent; on 12 % of them only one of
the two models is right, an assumption. The rule before was a veto by the point estimate.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from containers.contracts.champions import Comparison, Contest
from containers.evals.paired import PairedDifference, clustered_difference
from tasks.champions.contests import FROZEN_PAIRS, Compared, contests_of
from tasks.config.retrain import RetrainRules, leads

_DISCORDANT = 0.12
_RULES = RetrainRules()
# Items of the frozen set, true gain on it; number of suites, items of each, true gain on each.
Setting = tuple[int, float, int, int, float]
SETTINGS: tuple[Setting, ...] = (
    *((count, gain, 0, 0, 0.0) for count in (500, 2000) for gain in (0.0, 0.02, 0.04)),
    *((2000, 0.04, number, size, 0.0) for number, size in ((3, 200), (3, 500), (8, 300))),
    *((2000, 0.04, 3, size, fall) for size in (500, 2000) for fall in (-0.02, -0.04)),
    (2000, 0.04, 8, 300, -0.04),
)


@dataclass(frozen=True)
class ContestCell:
    """Shares of challengers that became champion, and that a suite stopped; and the rule before.

    Attributes:
        shown: the median of the difference that the contest on the frozen set says it shows in 80 % of cases.
    """

    setting: str
    crowned: float
    vetoed: float
    crowned_before: float
    vetoed_before: float
    shown: float


def contest_cells(*, draws: int, seed: int, settings: Sequence[Setting] = SETTINGS) -> Iterator[ContestCell]:
    """Yield a cell for each setting."""
    generator = np.random.default_rng(seed)
    for count, gain, num_suites, size, fall in settings:
        crowned, vetoed, crowned_before, vetoed_before, shown = 0, 0, 0, 0, []
        for _ in range(draws):
            frozen = _compared(generator, FROZEN_PAIRS, count, gain)
            suites = [_compared(generator, f"suite {number}", size, fall) for number in range(num_suites)]
            contests = contests_of(frozen, suites, _RULES)
            found = _comparison(contests)
            falls = any(_fell_before(contest) for contest in contests[1 : 1 + num_suites])
            alone = leads(_comparison(contests[:1]))
            crowned += leads(found)
            vetoed += any(contest.regresses for contest in contests[1:])
            crowned_before += alone and not falls
            vetoed_before += falls
            shown.append(contests[0].detectable or 0.0)
        suites_text = f", {num_suites} suites of {size:,} with {fall:+.0%}" if num_suites else ""
        yield ContestCell(
            f"frozen {count:,} with {gain:+.0%}{suites_text}",
            crowned=crowned / draws,
            vetoed=vetoed / draws,
            crowned_before=crowned_before / draws,
            vetoed_before=vetoed_before / draws,
            shown=float(np.median(shown)),
        )


def contests_table(*, draws: int, seed: int) -> str:
    """The cells as a Markdown table."""
    rows = [
        f"| {cell.setting} | {cell.crowned:.0%} | {cell.vetoed:.0%} | {cell.crowned_before:.0%} | "
        f"{cell.vetoed_before:.0%} | {100 * cell.shown:.1f} |"
        for cell in contest_cells(draws=draws, seed=seed)
    ]
    return "\n".join(
        [
            "| true gains | crowned | stopped by a suite | crowned before | stopped before | would show, points |",
            "|---|---:|---:|---:|---:|---:|",
            *rows,
        ]
    )


def _compared(generator: np.random.Generator, name: str, count: int, gain: float) -> Compared:
    better, worse = (_DISCORDANT + gain) / 2, (_DISCORDANT - gain) / 2
    drawn = generator.choice([1.0, -1.0, 0.0], p=[better, worse, 1 - _DISCORDANT], size=count)
    difference: PairedDifference = clustered_difference(
        drawn.tolist(), list(map(str, range(count))), confidence=_RULES.confidence
    )
    return Compared(name, "accuracy", difference, champion=0.7, challenger=0.7 + difference.figure.value)


def _comparison(contests: tuple[Contest, ...]) -> Comparison:
    return Comparison(champion=1, challenger=2, contests=contests, confidence=_RULES.confidence, alpha=_RULES.alpha)


def _fell_before(contest: Contest) -> bool:
    """Whether the point estimate is below the budget: the rule before."""
    return contest.difference is not None and contest.difference.value < -_RULES.regression_budget


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=400, help="contests of each setting (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    print(contests_table(draws=options.draws, seed=options.seed))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
