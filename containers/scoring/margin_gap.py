"""How far the margins of pairs are apart on two code paths, where rounding does not bound their scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from containers.contracts.records import SCORE_TOLERANCE
from containers.scoring.rounding import MARGIN_SHARE, ORDERS_SHARE, allowed_orders


@dataclass(frozen=True)
class MarginGap:
    """The largest difference of a margin, and the pairs whose order changes.

    Attributes:
        largest: difference of a pair's two margins.
        typical: margin, the root of the mean square.
    """

    num_pairs: int
    largest: float
    num_orders_changed: int
    typical: float

    @classmethod
    def of(cls, wanted: Sequence[float], found: Sequence[float]) -> "MarginGap":
        """Compare scores; two consecutive conversations are a pair."""
        one, other = (
            [chosen - rejected for chosen, rejected in zip(scores[::2], scores[1::2], strict=True)]
            for scores in (wanted, found)
        )
        pairs = list(zip(one, other, strict=True))
        return cls(
            num_pairs=len(pairs),
            largest=max(abs(a - b) for a, b in pairs),
            num_orders_changed=sum(a * b <= 0 and abs(a - b) > SCORE_TOLERANCE for a, b in pairs),
            typical=math.sqrt(sum(margin**2 for margin in one) / len(one)),
        )

    @property
    def bound(self) -> float:
        """Largest difference allowed."""
        return max(2 * SCORE_TOLERANCE, MARGIN_SHARE * self.typical)

    @property
    def is_allowed(self) -> bool:
        """Whether rewards and orders are as good as equal."""
        return self.largest <= self.bound and self.num_orders_changed <= allowed_orders(self.num_pairs)

    def __str__(self) -> str:
        return (
            f"margins of {self.num_pairs} pairs are at most {self.largest:.2g} apart (allowed: {self.bound:.2g}, "
            f"{MARGIN_SHARE:.0%} of a typical one), and {self.num_orders_changed} orders change (allowed: "
            f"{allowed_orders(self.num_pairs)}, {ORDERS_SHARE:.0%})"
        )
