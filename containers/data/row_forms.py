"""A form of rows: the columns by which it is known, and its parser."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from containers.data.rows import MalformedRowError, Row, Value, column

RowT = TypeVar("RowT", bound=Row)


@dataclass(frozen=True, slots=True)
class RowForm(Generic[RowT]):
    """One form of rows.

    Attributes:
        columns: a row needs them.
        parse: makes the row of an object and of the further columns that are kept; raises MalformedRowError.
        stands_alone: no other column may be there.
    """

    name: str
    columns: tuple[str, ...]
    parse: Callable[[Value, Mapping[str, Any]], RowT]
    stands_alone: bool = False

    def fits(self, names: Collection[str]) -> bool:
        """Whether a row with columns of these names can be of this form."""
        return set(self.columns).issubset(names) and (len(names) == len(self.columns) or not self.stands_alone)

    def row_of(self, value: Value, *, keep: Sequence[str] = ()) -> RowT:
        """Return the row of one object.

        Args:
            keep: further columns that the row must have, and keeps.

        Raises:
            MalformedRowError: it cannot be used; names why.
        """
        try:
            kept = {name: column(value, name) for name in keep}
            row = self.parse(value, kept)
            json.dumps(kept, allow_nan=False)
        except RecursionError:
            raise MalformedRowError("invalid_json", "nested too deeply") from None
        except (TypeError, ValueError) as error:
            if isinstance(error, MalformedRowError):
                raise
            raise MalformedRowError("column_not_json", str(error)) from None
        return row
