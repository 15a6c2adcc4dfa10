"""How the rows of a source are read where its columns do not say it: names of columns, pairs of rankings, slices."""

import re
from typing import Literal, NamedTuple, Self

from pydantic import Field

from containers.contracts.base import Frozen

RankingPairs = Literal["best_and_worst", "adjacent", "all"]

_SPLIT = re.compile(r"(?P<name>[\w.-]+)(?:\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")


class RowReading(Frozen):
    """Settings of a source that change which rows and pairs come out of its files."""

    columns: dict[str, str] = Field({}, description="Our name of a column → the file's name")
    ranking_pairs: RankingPairs = Field("best_and_worst", description="Pairs of a row with several answers")
    train_rows: str = Field("", description="Rows of the training files, such as `[:10%]`; empty: all")
    validation_rows: str = Field("", description="As `train_rows`, of the validation files")

    @property
    def makes_more_pairs(self) -> bool:
        """Whether one row may give several pairs."""
        return self.ranking_pairs != "best_and_worst"


AS_FOUND = RowReading()


class SplitName(NamedTuple):
    """A split of a dataset on the hub and, in brackets, its rows."""

    name: str
    rows: str

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Read `train`, `train[:10%]` or `train[100:200]`, as the datasets library has them.

        Raises:
            ValueError: it is neither.
        """
        found = _SPLIT.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} is no split. Write `train`, `train[:10%]` or `train[100:200]`; several splits are several "
                f"sources of a mixture."
            )
        rows = text[found.end("name") :]
        if rows:
            slice_of(rows, num_rows=1000)
        return cls(found["name"], rows)


def slice_of(rows: str, *, num_rows: int) -> range:
    """The numbers of the rows in a slice, from 0; percentages are rounded to the nearest row.

    Args:
        rows: `[start:stop]`, each a number or a percentage, negative ones from the end; empty: all.
        num_rows: of the whole split.

    Raises:
        ValueError: the slice begins behind its end, or a percentage is above 100.

    Source: the slices of the datasets library (`ReadInstruction`, rounding `closest`).
    Example: `[:10%]` of 2,817 rows are the rows 0 to 281.
    """
    found = _SPLIT.fullmatch(f"x{rows}")
    start, stop = (None, None) if found is None else (found["start"], found["stop"])
    for end in (start, stop):
        if end is not None and end.endswith("%") and abs(int(end[:-1])) > 100:
            raise ValueError(f"{rows}: {end} is more than all rows. Percentages go from -100 to 100.")
    first, last = _place(start, num_rows, otherwise=0), _place(stop, num_rows, otherwise=num_rows)
    same_unit = [end for end in (start, stop) if end is not None]
    if first >= last and len({end.endswith("%") for end in same_unit}) == 1 and len(same_unit) == 2:
        raise ValueError(f"{rows} holds no row: it ends where it begins, or before.")
    return range(first, max(first, last))


def _place(end: str | None, num_rows: int, *, otherwise: int) -> int:
    if end is None:
        return otherwise
    place = round(num_rows * int(end[:-1]) / 100) if end.endswith("%") else int(end)
    return max(0, min(num_rows, place + num_rows if end.startswith("-") else place))
