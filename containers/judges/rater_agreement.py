"""How far several people agree who judged the same items. Pure."""

from collections import Counter
from collections.abc import Sequence
from itertools import permutations


def krippendorff_alpha(items: Sequence[Sequence[float]]) -> float | None:
    """Krippendorff's alpha for categories: 1 is agreement, 0 what chance alone gives; some may have judged fewer items.

    Args:
        items: the categories that were chosen for each item; an item with one choice says nothing.

    Returns:
        None where no item has two choices, or all choices are the same.

    Source: Krippendorff 2011, Computing Krippendorff's Alpha-Reliability, section C (nominal data).
    """
    pairs: Counter[tuple[float, float]] = Counter()
    for choices in items:
        for pair in permutations(choices, 2):
            pairs[pair] += 1 / (len(choices) - 1)  # type: ignore[assignment]  # counts are shares here
    total = sum(pairs.values())
    of_each: Counter[float] = Counter()
    for (one, _), count in pairs.items():
        of_each[one] += count
    expected = sum(of_each[one] * of_each[other] for one in of_each for other in of_each if one != other)
    if not expected:
        return None
    observed = sum(count for (one, other), count in pairs.items() if one != other)
    return 1 - (total - 1) * observed / expected
