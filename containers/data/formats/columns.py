"""The schemas of preference data by their columns, their parsers, and their detection. Pure; used by check and stage.

    HelpSteer3           context, response1, response2, overall_preference   negative: response 1 is better
    TRL preference       chosen, rejected, with prompt or sharing their beginning: conversations, plain texts, or
                         transcripts of HH-RLHF ("\\n\\nHuman: …"); scores tell the strength (UltraFeedback, Argilla)
    Orca DPO             question (or input), chosen, rejected, with a system prompt
    Alpaca ranking       instruction, chosen, rejected, with input           as LLaMA-Factory has it
    ShareGPT DPO         conversations, chosen, rejected                     turns of `from` and `value`
    Argilla              instruction, chosen_response, rejected_response     ratings tell the strength
    PKU-SafeRLHF         prompt, response_0, response_1, better_response_id
    arena                prompt, response_a, response_b, winner              a, b or tie
    arena conversations  conversation_a, conversation_b, winner
    UltraFeedback        instruction, completions                            pairs by `overall_score`
    ranking, Nectar      a prompt, its answers, and their ranks or scores
    unpaired             prompt, completion, label                           KTO: pairs where a prompt has both labels
    comparisons          text, and nothing else                              NeMo-Aligner: good line before bad line

`domain` and `language` are optional in all other schemas: a pair and its label are complete without them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from containers.contracts.configs.parts.row_filters import RankingPairs
from containers.data.formats import rankings
from containers.data.formats.dialogues import parse_arena_conversations, parse_sharegpt_dpo
from containers.data.formats.errors import UnknownSchemaError
from containers.data.formats.files import Line
from containers.data.formats.joined_lines import pairs_by_label, parse_unpaired, two_lines_as_one
from containers.data.formats.questions import parse_alpaca_ranking, parse_argilla, parse_orca
from containers.data.formats.schemas import (
    parse_arena,
    parse_comparison,
    parse_helpsteer3,
    parse_pku_safe_rlhf,
    parse_trl,
    parse_ultrafeedback,
)
from containers.data.formats.sides import SCORES_OF_SIDES
from containers.data.rows import PreferenceRow, Value
from containers.formatting import one_line
from containers.harness.errors import BadDataError

_NAMES_SHOWN = 20
NAME_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class PreferenceSchema:
    """A schema of preferences: `columns` are required, `optional` ones are read if present.

    Attributes:
        parse: reads one object of it.
        one_of: groups of columns of which each must have one.
        without: columns that no row of it has; they mark another schema.
        stands_alone: no other column may be there, since the names alone say too little.
        split: makes of an object one for each of its pairs; None: it is one pair.
        join: makes objects of several lines each; None: a line is an object.
    """

    name: str
    parse: Callable[[Value], PreferenceRow]
    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()
    one_of: tuple[tuple[str, ...], ...] = ()
    without: tuple[str, ...] = ()
    stands_alone: bool = False
    split: Callable[[Value, RankingPairs], Sequence[Value]] | None = None
    join: Callable[[Iterator[Line], str], Iterator[Line]] | None = None

    @property
    def example(self) -> tuple[str, ...]:
        """The least columns that a row of it has."""
        return (*self.columns, *(names[0] for names in self.one_of))

    @property
    def known(self) -> tuple[str, ...]:
        """Every column that it reads."""
        return (*self.columns, *self.optional, *(name for names in self.one_of for name in names))

    def fits(self, names: Collection[str]) -> bool:
        """Whether a row with columns of these names can be of this schema."""
        return not self.lacks(names) and not self.excess(names)

    def lacks(self, names: Collection[str]) -> tuple[str, ...]:
        """The columns that such a row lacks; of a group, all names joined with `or`."""
        missing = [name for name in self.columns if name not in names]
        groups = [" or ".join(group) for group in self.one_of if not any(name in names for name in group)]
        return (*missing, *groups)

    def excess(self, names: Collection[str]) -> tuple[str, ...]:
        """The columns of such a row that no row of this schema has."""
        if self.stands_alone:
            return tuple(name for name in names if name not in self.columns)
        return tuple(name for name in self.without if name in names)


_SCORES = tuple(name for names in SCORES_OF_SIDES for name in names)
_INSTEAD_OF_PROMPT = ("prompt",)

HELPSTEER3 = PreferenceSchema(
    "HelpSteer3",
    parse_helpsteer3,
    ("context", "response1", "response2", "overall_preference"),
    ("individual_preference",),
)
SHAREGPT_DPO = PreferenceSchema(
    "ShareGPT DPO",
    parse_sharegpt_dpo,
    ("conversations", "chosen", "rejected"),
    ("system", *_SCORES),
    without=_INSTEAD_OF_PROMPT,
)
ORCA_DPO = PreferenceSchema(
    "Orca DPO",
    parse_orca,
    ("question", "chosen", "rejected"),
    ("system", "margin", *_SCORES),
    without=_INSTEAD_OF_PROMPT,
)
DISTILABEL_ORCA = PreferenceSchema(
    "Orca DPO of distilabel",
    parse_orca,
    ("system", "input", "chosen", "rejected"),
    ("status", "margin"),
    without=(*_INSTEAD_OF_PROMPT, "question", "instruction"),
)
ALPACA_RANKING = PreferenceSchema(
    "Alpaca ranking",
    parse_alpaca_ranking,
    ("instruction", "chosen", "rejected"),
    ("input", "system", "margin", *_SCORES),
    without=_INSTEAD_OF_PROMPT,
)
TRL = PreferenceSchema("TRL preference", parse_trl, ("chosen", "rejected"), ("prompt", "system", "margin", *_SCORES))
ARGILLA = PreferenceSchema(
    "Argilla",
    parse_argilla,
    ("instruction", "chosen_response", "rejected_response"),
    ("input", "system", "margin", *_SCORES),
)
PKU_SAFE_RLHF = PreferenceSchema(
    "PKU-SafeRLHF", parse_pku_safe_rlhf, ("prompt", "response_0", "response_1", "better_response_id")
)
ARENA = PreferenceSchema("arena", parse_arena, ("prompt", "response_a", "response_b", "winner"))
ARENA_CONVERSATIONS = PreferenceSchema(
    "arena conversations", parse_arena_conversations, ("conversation_a", "conversation_b", "winner")
)
ULTRAFEEDBACK = PreferenceSchema(
    "UltraFeedback",
    parse_ultrafeedback,
    ("instruction", "completions"),
    without=rankings.ORDERS,
    split=rankings.ultrafeedback_rows,
)
RANKING = PreferenceSchema(
    "ranking",
    rankings.parse_ranking,
    (),
    ("system",),
    one_of=(rankings.PROMPTS, rankings.ANSWERS, rankings.ORDERS),
    split=rankings.ranking_rows,
)
NECTAR = PreferenceSchema(
    "Nectar",
    rankings.parse_ranking,
    ("prompt", "num_responses", "answers"),
    without=rankings.ORDERS,
    split=rankings.ranking_rows,
)
UNPAIRED = PreferenceSchema(
    "unpaired (KTO)", parse_unpaired, ("prompt", "completion", "label"), ("system",), join=pairs_by_label
)
COMPARISONS = PreferenceSchema(
    "NeMo-Aligner comparisons", parse_comparison, ("text",), stands_alone=True, join=two_lines_as_one
)
# The first that fits counts, so a schema with more columns stands before one with fewer of them.
SCHEMAS = (
    HELPSTEER3,
    SHAREGPT_DPO,
    ORCA_DPO,
    DISTILABEL_ORCA,
    ALPACA_RANKING,
    TRL,
    ARGILLA,
    PKU_SAFE_RLHF,
    ARENA,
    ARENA_CONVERSATIONS,
    ULTRAFEEDBACK,
    RANKING,
    NECTAR,
    UNPAIRED,
    COMPARISONS,
)
# A row of these is a pair, and nothing else: in a file to be scored, too.
PAIR_SCHEMAS = tuple(schema for schema in SCHEMAS if schema not in (RANKING, NECTAR, UNPAIRED))
KNOWN_COLUMNS = tuple(dict.fromkeys((*(name for schema in SCHEMAS for name in schema.known), "domain", "language")))


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
            f"{_nearest(found)}Columns wanted, one of: {'; '.join(_wanted(schema) for schema in SCHEMAS)}. "
            "Name the columns in dataset.columns (our name: the file's name), or convert the file.",
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


def _nearest(found: Collection[str]) -> str:
    """A sentence on the schema that fewest columns are missing of, among those that share one; empty if none does."""
    sharing = [schema for schema in SCHEMAS if any(name in schema.known for name in found)]
    if not sharing:
        return ""
    nearest = min(sharing, key=lambda schema: len(schema.lacks(found)) + len(schema.excess(found)))
    lacks = [" or ".join(f"`{name}`" for name in lack.split(" or ")) for lack in nearest.lacks(found)]
    if lacks:
        return f"Nearest: {nearest.name}; its {' and '.join(lacks)} {'is' if len(lacks) == 1 else 'are'} missing. "
    more = ", ".join(f"`{one_line(name, NAME_CHARACTERS)}`" for name in nearest.excess(found)[:_NAMES_SHOWN])
    return f"Nearest: {nearest.name}, which has no {more}. "


def _wanted(schema: PreferenceSchema) -> str:
    names = [*schema.columns, *("|".join(group) for group in schema.one_of)]
    more = f"; optional: {', '.join(schema.optional)}" if schema.optional else ""
    more = "; no other" if schema.stands_alone else more
    return f"{schema.name} ({', '.join(names)}{more})"
