"""The schemas of preference data by their columns, their parsers, and their detection. Pure; used by check and stage.

    HelpSteer3       context, response1, response2, overall_preference   negative: response 1 is better
    TRL preference   chosen, rejected, with prompt or sharing their beginning: conversations, plain texts, or
                     transcripts of HH-RLHF ("\\n\\nHuman: …"); scores, where given, tell the strength (UltraFeedback)
    arena            prompt, response_a, response_b, winner              a, b or tie
    UltraFeedback    instruction, completions                            best against worst by `overall_score`
    comparisons      text, and nothing else                              NeMo-Aligner: good line before bad line

`domain` and `language` are optional in all other schemas: a pair and its label are complete without them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from containers.data.formats.errors import UnknownSchemaError
from containers.data.formats.schemas import (
    parse_arena,
    parse_comparison,
    parse_helpsteer3,
    parse_trl,
    parse_ultrafeedback,
)
from containers.data.rows import PreferenceRow, Value
from containers.formatting import one_line
from containers.harness.errors import BadDataError

_NAMES_SHOWN = 20
NAME_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class PreferenceSchema:
    """A schema of preferences: `columns` are required, `optional` ones are read if present.

    `parse` reads one object of it; `num_lines` lines make one row. `stands_alone`: no other column may be there, since
    the names alone say too little.
    """

    name: str
    parse: Callable[[Value], PreferenceRow]
    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()
    stands_alone: bool = False
    num_lines: int = 1

    def fits(self, names: Collection[str]) -> bool:
        """Whether a row with columns of these names can be of this schema."""
        return set(self.columns).issubset(names) and (len(names) == len(self.columns) or not self.stands_alone)


HELPSTEER3 = PreferenceSchema(
    "HelpSteer3",
    parse_helpsteer3,
    ("context", "response1", "response2", "overall_preference"),
    ("individual_preference",),
)
TRL = PreferenceSchema(
    "TRL preference", parse_trl, ("chosen", "rejected"), ("prompt", "margin", "score_chosen", "score_rejected")
)
ARENA = PreferenceSchema("arena", parse_arena, ("prompt", "response_a", "response_b", "winner"))
ULTRAFEEDBACK = PreferenceSchema("UltraFeedback", parse_ultrafeedback, ("instruction", "completions"))
COMPARISONS = PreferenceSchema("NeMo-Aligner comparisons", parse_comparison, ("text",), stands_alone=True, num_lines=2)
SCHEMAS = (HELPSTEER3, TRL, ARENA, ULTRAFEEDBACK, COMPARISONS)


def schema_of(rows: Iterable[Iterable[str]], *, file: str) -> PreferenceSchema:
    """Return the schema whose columns most of `rows` have; the first in `SCHEMAS` if several are equal.

    Args:
        rows: the column names of each row.
        file: how messages name the file.

    Raises:
        UnknownSchemaError: no row has the columns of any schema.
    """
    hits: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for row in rows:
        names = tuple(row)
        found.update(names)
        hits.update(schema.name for schema in SCHEMAS if schema.fits(names))
    if not hits:
        raise UnknownSchemaError(
            file,
            f"has no schema that is known here. Columns found: {names_shown(found)}.",
            f"Columns wanted, one of: {'; '.join(_wanted(schema) for schema in SCHEMAS)}. "
            "Rename the columns, or convert the file.",
        )
    best = max(hits.values())
    return next(schema for schema in SCHEMAS if hits[schema.name] == best)


def detect_schema(values: Iterable[Value], *, file: str) -> PreferenceSchema:
    """As `schema_of`, for a stage.

    Raises:
        BadDataError: none has the columns of any schema; the message shows the columns found.
    """
    try:
        return schema_of(values, file=file)
    except UnknownSchemaError as error:
        raise BadDataError(str(error)) from error


def names_shown(found: Counter[str]) -> str:
    """The names, most frequent first. They are foreign text: cleaned and shortened."""
    names = [one_line(name, NAME_CHARACTERS) for name, _ in found.most_common(_NAMES_SHOWN)]
    if len(found) > _NAMES_SHOWN:
        names.append(f"and {len(found) - _NAMES_SHOWN:,} more")
    return ", ".join(names) or "none"


def _wanted(schema: PreferenceSchema) -> str:
    more = f"; optional: {', '.join(schema.optional)}" if schema.optional else ""
    more = "; no other" if schema.stands_alone else more
    return f"{schema.name} ({', '.join(schema.columns)}{more})"
