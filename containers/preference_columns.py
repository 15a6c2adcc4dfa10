"""The schemas of preference data by their columns, and which of them some rows have. Pure; used by check and stage.

    HelpSteer3       context, response1, response2, overall_preference   negative: response 1 is better
    TRL preference   chosen, rejected, with prompt or as conversations that share their beginning
    arena            prompt, response_a, response_b, winner              a, b or tie

`domain` and `language` are optional everywhere: a pair and its label are whole without them.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from containers.human_text import one_line

_COLUMNS_SHOWN = 20
_NAME_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class PreferenceSchema:
    """A way of writing preferences: `columns` must be there, `optional` ones are read where they are there."""

    name: str
    columns: tuple[str, ...]
    optional: tuple[str, ...]


HELPSTEER3 = PreferenceSchema(
    "HelpSteer3", ("context", "response1", "response2", "overall_preference"), ("individual_preference",)
)
TRL = PreferenceSchema("TRL preference", ("chosen", "rejected"), ("prompt", "margin"))
ARENA = PreferenceSchema("arena", ("prompt", "response_a", "response_b", "winner"), ())
SCHEMAS = (HELPSTEER3, TRL, ARENA)


class UnknownSchemaError(ValueError):
    """Rows that have the columns of no schema: `problem` shows the columns found, `advice` those wanted."""

    def __init__(self, problem: str, advice: str) -> None:
        self.problem = problem
        self.advice = advice
        super().__init__(f"{problem} {advice}")


def schema_of(rows: Iterable[Iterable[str]], *, file: str) -> PreferenceSchema:
    """The schema whose columns most of `rows` have; of equals the first in `SCHEMAS`.

    Args:
        rows: the column names of each row.
        file: how messages name the file.

    Raises:
        UnknownSchemaError: not one row has the columns of any schema.
    """
    hits: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for row in rows:
        names = tuple(row)
        found.update(names)
        hits.update(schema.name for schema in SCHEMAS if set(schema.columns).issubset(names))
    if not hits:
        raise UnknownSchemaError(
            f"{file} has no schema that is known here. Columns found: {_shown(found)}.",
            f"Columns wanted, one of: {'; '.join(_wanted(schema) for schema in SCHEMAS)}. "
            "Rename the columns, or convert the file.",
        )
    best = max(hits.values())
    return next(schema for schema in SCHEMAS if hits[schema.name] == best)


def _shown(found: Counter[str]) -> str:
    """The names, most frequent first. They are foreign text: cleaned and shortened."""
    names = [one_line(name, _NAME_CHARACTERS) for name, _ in found.most_common(_COLUMNS_SHOWN)]
    if len(found) > _COLUMNS_SHOWN:
        names.append(f"and {len(found) - _COLUMNS_SHOWN:,} more")
    return ", ".join(names) or "none"


def _wanted(schema: PreferenceSchema) -> str:
    optional = f"; optional: {', '.join(schema.optional)}" if schema.optional else ""
    return f"{schema.name} ({', '.join(schema.columns)}{optional})"
