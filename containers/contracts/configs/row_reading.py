"""How the rows of a source are read where its columns do not say it: names of columns, pairs of rankings, slices."""

import re
from typing import Literal, NamedTuple, Self

from pydantic import Field

from containers.contracts.base import Frozen

RankingPairs = Literal["best_and_worst", "adjacent", "all"]

_END = r"-?\d[\d_]*%?"
_SPLIT = re.compile(rf"(?P<name>\w[\w.-]*)(?P<rows>\[(?P<start>{_END})?:(?P<stop>{_END})?\])?", re.ASCII)


class RowReading(Frozen):
    """Settings of a source that change which rows and pairs come out of its files."""

    columns: dict[str, str] = Field({}, description="Our name of a column: the file's name")
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
        """Read `train`, `train[:10%]` or `train[100:200]`, as the datasets library writes them.

        Raises:
            ValueError: it is none of these, or no rows can be in it.
        """
        found = _SPLIT.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} is no split. Write `train`, `train[:10%]` or `train[100:200]`; several splits are several "
                f"sources of a mixture."
            )
        ends = [end for end in (found["start"], found["stop"]) if end is not None]
        if len(ends) == 2 and ends[0].endswith("%") != ends[1].endswith("%"):
            raise ValueError(f"{text!r} mixes a number of rows and a percentage. Write both ends in one unit.")
        numbers = [int(end.rstrip("%")) for end in ends]
        if any(end.endswith("%") and abs(number) > 100 for end, number in zip(ends, numbers, strict=True)):
            raise ValueError(f"{text!r} names more than all rows. Percentages go from -100 to 100.")
        if len(numbers) == 2 and numbers[0] >= numbers[1] and (numbers[0] < 0) == (numbers[1] < 0):
            raise ValueError(f"{text!r} holds no row: it ends where it begins, or before.")
        return cls(found["name"], found["rows"] or "")


def slice_of(rows: str, *, num_rows: int) -> range:
    """The numbers of the rows in a slice, from 0.

    Args:
        rows: `[start:stop]` as in a split; each a number or a percentage, negative ones from the end; empty: all.
        num_rows: of the whole split.

    Source: the slices of the datasets library: percentages are rounded to the nearest row, ends beyond the rows are
        the last row.
    Example: `[:10%]` of 2,817 rows are the rows 0 to 281.
    """
    found = _SPLIT.fullmatch(f"x{rows}")
    start, stop = (None, None) if found is None else (found["start"], found["stop"])
    first, last = _place(start, num_rows, otherwise=0), _place(stop, num_rows, otherwise=num_rows)
    return range(first, max(first, last))


def _place(end: str | None, num_rows: int, *, otherwise: int) -> int:
    if end is None:
        return otherwise
    place = round(num_rows * int(end[:-1]) / 100) if end.endswith("%") else int(end)
    return min(num_rows, max(0, place + num_rows) if place < 0 else place)
