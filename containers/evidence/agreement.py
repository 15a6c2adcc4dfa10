"""How alike two judges of the same answers order them. Pure."""

import math
from collections.abc import Sequence

from containers.contracts.outcome import Metric

# Below, the interval is as wide as the scale.
_FEWEST = 8


def rank_agreement(one: Sequence[float], other: Sequence[float], *, confidence: float = 0.95) -> Metric | None:
    """Spearman's rank correlation of two values of each answer; None where one of them is constant, or answers are few.

    Args:
        one, other: of the same answers in the same order, each to another prompt.

    Source: interval of Bonett and Wright 2000, Psychometrika 65(1), eq. 7: on Fisher's scale, with the variance
        (1 + r² / 2) / (n - 3).
    Example: 1, 2, 3 … 10 and 1, 2, 3 … 10 give 1; the interval of 0.8 on 50 answers is 0.65 to 0.89.
    """
    from scipy import stats  # heavy: a second

    if len(one) < _FEWEST or len(set(one)) < 2 or len(set(other)) < 2:
        return None
    found = float(stats.spearmanr(one, other).statistic)
    width = float(stats.norm.ppf((1 + confidence) / 2)) * math.sqrt((1 + found**2 / 2) / (len(one) - 3))
    # A correlation of 1 has no place on Fisher's scale.
    middle = math.atanh(max(-1 + 1e-9, min(1 - 1e-9, found)))
    return Metric(
        name="rank_agreement",
        value=found,
        unit="",
        ci_low=math.tanh(middle - width),
        ci_high=math.tanh(middle + width),
        count=len(one),
    )
