"""What a page says, apart from where it is shown: facts, tables, plots, notes and samples.

One function makes the blocks of a subject; a renderer shows them: `markdown` (Prefect), `html` (report and
certificate), `mlflow_tables`, and `flows.terminal`. Texts may be foreign: each renderer escapes and shortens them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from containers.contracts.outcome import Metric
from containers.contracts.records import Message
from containers.formatting import MISSING, interval, number, quantity

Tone = Literal["good", "warn", "bad", "plain"]
Pairs: TypeAlias = "tuple[tuple[str, Value], ...]"


class Quantity(NamedTuple):
    """A figure with its unit, as `Metric` names units."""

    value: float | None
    unit: str


@dataclass(frozen=True)
class Text:
    """A text with more to it: a quieter second line, a tone, the look of code, a link, a tooltip, a glossary's word."""

    text: str
    sub: str = ""
    tone: Tone | None = None
    is_code: bool = False
    link: str = ""
    hint: str = ""
    term: str = ""


Value: TypeAlias = str | int | float | Quantity | Metric | Text | None


def text_of(value: Value) -> str:
    """The value as text, without a second line; `—` for None."""
    if value is None:
        return MISSING
    if isinstance(value, (Metric, Quantity)):
        return quantity(value.value, value.unit)
    if isinstance(value, Text):
        return value.text
    return value if isinstance(value, str) else number(value)


def raw_of(value: Value) -> str | int | float | None:
    """The value as a program wants it: figures unrounded, without their unit."""
    if isinstance(value, (Metric, Quantity)):
        return value.value
    return value.text if isinstance(value, Text) else value


@dataclass(frozen=True)
class Facts:
    """Labels and values. `is_wide`: several short ones beside each other. Those with an empty value are left out."""

    kind: ClassVar = "facts"
    rows: Pairs
    is_wide: bool = False

    @property
    def shown(self) -> Pairs:
        """The rows that have a value."""
        return tuple((label, value) for label, value in self.rows if value not in ("", None))


@dataclass(frozen=True)
class Column:
    """The head of a column; `term` is its word in the glossary."""

    title: str
    is_number: bool = False
    term: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of values; the first value of a row names it.

    Attributes:
        name: of the table in MLflow; empty: MLflow does not show it.
        empty: said instead of a table without rows.

    Raises:
        ValueError: a row has more or fewer values than there are columns.
    """

    kind: ClassVar = "table"
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    name: str = ""
    empty: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"A row has {len(row)} cells, the table {len(self.columns)} columns: {row!r}")


@dataclass(frozen=True)
class Plot:
    """A figure as SVG with the colours of the light theme, its heading, and a line that says what is shown."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class Plots:
    """Figures beside each other; `empty` is said instead of none."""

    kind: ClassVar = "plots"
    items: tuple[Plot, ...]
    empty: str = ""


@dataclass(frozen=True)
class Note:
    """A sentence or several. Words in `terms`, or (word, its name in the glossary), are explained where they stand."""

    kind: ClassVar = "note"
    text: str
    look: Literal["lead", "plain", "quiet", "caveat"] = "plain"
    terms: tuple[str | tuple[str, str], ...] = ()
    link: str = ""


@dataclass(frozen=True)
class Bullets:
    """Sentences, one below the other."""

    kind: ClassVar = "bullets"
    items: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """Text as it is, such as a command or a log."""

    kind: ClassVar = "code"
    text: str
    limit: int = 2000


@dataclass(frozen=True)
class Answer:
    """One of the answers to a prompt, with its score; `is_better` marks the one with the highest."""

    title: str
    text: str
    score: float
    is_better: bool


@dataclass(frozen=True)
class Sample:
    """A prompt with its answers, and what the scores say about their order; `margin` is first minus second score."""

    prompt: tuple[Message, ...]
    answers: tuple[Answer, ...]
    outcome: Text
    margin: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Samples:
    """Prompts with answers; `name` is that of their table in MLflow, `note` says what marks an answer."""

    kind: ClassVar = "samples"
    name: str
    items: tuple[Sample, ...]
    note: str = ""


@dataclass(frozen=True)
class Node:
    """A stage or a gate in the drawing of the DAG."""

    title: str
    status: str
    tone: Tone
    detail: str = ""
    is_gate: bool = False


@dataclass(frozen=True)
class Dag:
    """The drawing of the DAG."""

    kind: ClassVar = "dag"
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Definitions:
    """Words of the glossary with their meanings."""

    kind: ClassVar = "definitions"
    words: tuple[str, ...]


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader opens."""

    kind: ClassVar = "fold"
    title: str
    blocks: "tuple[Block, ...]"
    is_open: bool = False


@dataclass(frozen=True)
class Beside:
    """Blocks beside each other where there is room."""

    kind: ClassVar = "beside"
    parts: "tuple[tuple[Block, ...], ...]"


@dataclass(frozen=True)
class Section:
    """Blocks under a heading. `anchor` and `short` are its link and name in the navigation of a page.

    A section of a page that is folded shows its heading alone until a reader opens it.
    """

    kind: ClassVar = "section"
    title: str
    blocks: "tuple[Block, ...]"
    outcome: Text | None = None
    anchor: str = ""
    short: str = ""
    is_folded: bool = False


Block: TypeAlias = Facts | Table | Plots | Note | Bullets | Code | Samples | Dag | Definitions | Fold | Beside | Section


@dataclass(frozen=True)
class Card:
    """A main figure; `value` is empty where there is none, and `detail` then says why."""

    label: str
    term: str
    value: str = ""
    interval: str = ""
    detail: str = ""
    origin: Literal["measured", "estimated"] = "measured"


@dataclass(frozen=True)
class Banner:
    """The outcome in one sentence, and what a reader must know before reading on."""

    tone: Tone
    headline: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """A whole page. `title` is in the browser's tab, too."""

    title: str
    sections: tuple[Section, ...]
    banner: Banner | None = None
    cards: tuple[Card, ...] = ()
    facts: Pairs = ()
    lead: str = ""
    footer: str = ""


def walk(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield all blocks, also those inside others."""
    for block in blocks:
        yield block
        if isinstance(block, (Fold, Section)):
            yield from walk(block.blocks)
        elif isinstance(block, Beside):
            for part in block.parts:
                yield from walk(part)


def heads(*titles: str | tuple[str, str], numbers: int = 0) -> tuple[Column, ...]:
    """Columns by their titles, or (title, term); the last `numbers` of them hold figures."""
    pairs = [(title, "") if isinstance(title, str) else title for title in titles]
    return tuple(Column(title, index >= len(pairs) - numbers, term) for index, (title, term) in enumerate(pairs))


def figures_table(rows: Sequence[tuple[str | Text, Metric]], *, what: str = "Figure") -> Table:
    """Figures with interval, number of observations and origin."""
    shown = []
    for name, metric in rows:
        origin = Text(metric.origin, tone="warn" if metric.origin == "estimated" else None)
        shown.append((name, metric, interval(metric) or None, metric.count, origin))
    return Table((*heads(what, "Value", ("Interval", "interval"), "n", numbers=3), Column("Origin")), tuple(shown))
