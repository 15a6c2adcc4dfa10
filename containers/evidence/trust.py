"""When a policy in training is trusted: only once it was shown to be better than the last one that was. Pure.

The rule and its figures: `docs/proofs/evidence.md`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from containers.contracts.evidence import Shown

# One-sided, of each of the two tests of a look.
_LEVEL = 0.025


@dataclass(frozen=True)
class Tally:
    """Verdicts of a judge on pairs, of the newer policy's answer against the older one's."""

    wins: int = 0
    ties: int = 0
    losses: int = 0
    untold: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        """Both together."""
        return Tally(
            self.wins + other.wins, self.ties + other.ties, self.losses + other.losses, self.untold + other.untold
        )

    @property
    def shown(self) -> Shown:
        """What it shows: an exact sign test at 2.5 % on either side; ties tell nothing.

        Example: 41 wins and 23 losses show a gain (1.6 %), 40 and 24 do not (3.0 %).
        """
        if _tail(self.wins, self.losses) < _LEVEL:
            return "better"
        return "worse" if _tail(self.losses, self.wins) < _LEVEL else "neither"


def _tail(wins: int, losses: int) -> float:
    """Return the probability of at least so many wins where both are equally good."""
    from scipy import stats  # heavy: a second

    decided = wins + losses
    return float(stats.binom.sf(wins - 1, decided, 0.5)) if decided else 1.0


def look(judged: Callable[[int, int], Tally], *, num_pairs: int) -> Tally:
    """Return the verdicts on `num_pairs` pairs; on twice as many where those show nothing.

    Args:
        judged: gives the verdicts on the pairs from the first number up to the second.
    """
    found = judged(0, num_pairs)
    return found if found.shown != "neither" else found + judged(num_pairs, 2 * num_pairs)


def chance_to_show(win_rate: float, *, num_pairs: int) -> float:
    """Return how often a look shows the gain of a policy with that true win rate, where no pair is a tie. Exact.

    Example: with 64 pairs at first, a win rate of 0.5 is taken for a gain in 3 % of the looks.
    """
    from scipy import stats

    def first_to_show(pairs: int) -> int:
        return next((wins for wins in range(pairs + 1) if _tail(wins, pairs - wins) < _LEVEL), pairs + 1)

    enough, in_all = first_to_show(num_pairs), first_to_show(2 * num_pairs)
    found = float(stats.binom.sf(enough - 1, num_pairs, win_rate))
    for wins in range(num_pairs - enough + 1, enough):  # neither gain nor loss
        missing = in_all - wins
        found += float(stats.binom.pmf(wins, num_pairs, win_rate) * stats.binom.sf(missing - 1, num_pairs, win_rate))
    return found


def least_shown(*, num_pairs: int, chance: float = 0.8) -> float:
    """Return the true win rate whose gain a look shows that often; to a tenth of a percent.

    Example: 64 pairs, and then 128, show a win rate of 62 % in four of five looks.
    """
    low, high = 0.5, 1.0
    while high - low > 0.001:
        middle = (low + high) / 2
        low, high = (low, middle) if chance_to_show(middle, num_pairs=num_pairs) >= chance else (middle, high)
    return high


@dataclass
class Trust:
    """Which step is trusted, and how long no better one was shown.

    Attributes:
        patience: so many looks in a row may show no gain.
        step: the trusted step; 0 is the start model.
        missed: newest looks in a row that showed no gain.
    """

    patience: int
    step: int = 0
    missed: int = 0

    def take(self, step: int, shown: Shown, *, was_due: bool = True) -> Literal["trusted", "goes on", "no gain"]:
        """Take in what a look at this step shows; a loss beyond chance needs no second look.

        Args:
            was_due: false for one that a meter asked for: it may come soon after another, and tries no patience.
        """
        if shown == "better":
            self.step, self.missed = step, 0
            return "trusted"
        self.missed += was_due
        if self.missed < self.patience and shown != "worse":
            return "goes on"
        self.missed = 0
        return "no gain"
