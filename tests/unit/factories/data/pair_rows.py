"""The pairs of one file, and the rows left out of them."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from containers.data.filters.flaws import first_flaw
from containers.data.reader import read_rows
from containers.data.rows import Pair


@dataclass(frozen=True)
class PairRows:
    """The pairs of a file, and the number of rows left out for each reason."""

    pairs: tuple[Pair, ...]
    left_out: dict[str, int]


def read_pairs(path: Path) -> PairRows:
    """Read the pairs of one file, without malformed rows and those with a flaw."""
    pairs: list[Pair] = []
    left_out: Counter[str] = Counter()
    for item in read_rows(path):
        reason = item.reason if item.row is None else first_flaw(item.row)
        if item.row is None or reason:
            left_out[reason] += 1
        else:
            pairs.append(item.row.pair)
    return PairRows(pairs=tuple(pairs), left_out=dict(left_out))
