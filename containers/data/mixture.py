"""How many pairs each source of a mixture gives, so that their shares are as asked and no pair is used twice. Pure."""

import math
from collections.abc import Mapping


def mixture_sizes(available: Mapping[str, int], weights: Mapping[str, float], *, most: int | None) -> dict[str, int]:
    """The largest mixture of these shares that the sources can give.

    Args:
        available: pairs of each source.
        weights: of each source; only their ratios count.
        most: pairs of all sources together; None: no limit.

    Returns:
        Pairs to take of each source, rounded down.

    Example: 100 pairs of `a` and 30 of `b` at weights 1 and 1 give 30 and 30; at 4 and 1 they give 100 and 25.
    """
    whole = sum(weights[name] for name in available)
    shares = {name: weights[name] / whole for name in available}
    total = min((count / shares[name] for name, count in available.items()), default=0.0)
    if most is not None:
        total = min(total, most)
    # 0.1 + 0.2 is not quite 0.3 in binary; a pair less would be taken for no reason.
    return {name: math.floor(shares[name] * total + 1e-6) for name in available}
