"""Read the rows of a file as conversations to score. Every row is returned: to be scored, or with the reason why not.

preferences   any schema of `containers.data.formats.columns`: both sides
responses     prompt, responses (or completions): a list of answers, to find the best one
response      prompt, response (or completion): one answer
messages      messages: a conversation that ends with the assistant's turn
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from containers.data.filters.flaws import control_token, control_token_in, has_equal_responses
from containers.data.formats.columns import PAIR_SCHEMAS, schema_of
from containers.data.formats.errors import UnknownSchemaError
from containers.data.formats.files import Line, data_files, read_lines
from containers.data.formats.transcripts import turns_of_prompt, turns_of_text
from containers.data.reader import RowRead, first_objects, rows_of_lines
from containers.data.rows import MalformedRowError, Turn, Value, column, read_prompt, read_response
from containers.harness.errors import BadDataError

_SEEN_CHARACTERS = 80


class RowKind(StrEnum):
    """What a row holds; it decides what is reported about the row."""

    PAIR = "pair"
    RESPONSES = "responses"
    RESPONSE = "response"


@dataclass(frozen=True, slots=True)
class RowToScore:
    """One row of a file; if two lines make a row, `line` is the first.

    Attributes:
        responses: in a pair, the chosen one is first.
        is_tie: the data calls neither side of the pair better.
        reason: why the row cannot be scored; empty if it can. `seen` shows what was found.
    """

    file: str
    line: int
    kind: RowKind = RowKind.RESPONSE
    prompt: tuple[Turn, ...] = ()
    responses: tuple[str, ...] = ()
    is_tie: bool = False
    reason: str = ""
    seen: str = ""

    def conversation(self, place: int) -> list[Turn]:
        """The prompt, answered with the response at that place."""
        return [*self.prompt, {"role": "assistant", "content": self.responses[place]}]


def read_rows_to_score(path: Path) -> Iterator[RowToScore]:
    """Yield one item per row of the file, or of every data file in the folder, in order; `file` is set for a folder.

    Raises:
        BadDataError: there is no data file, one is damaged, or its rows have no known columns.
    """
    for file in data_files(path):
        yield from _rows_of_file(file, name=file.relative_to(path).as_posix() if path.is_dir() else "")


def _rows_of_file(path: Path, *, name: str) -> Iterator[RowToScore]:
    objects, lines = first_objects(read_lines(path), file=path.name)
    parse = _parser(objects, file=path.name)
    if parse is None:
        for read in rows_of_lines(lines, file=path.name):
            yield _pair(read, file=name)
    else:
        for line in lines:
            yield _read(line, parse, file=name)


_Parse = Callable[[Value], tuple[RowKind, tuple[Turn, ...], tuple[str, ...]]]


def _parser(objects: list[dict[str, object]], *, file: str) -> _Parse | None:
    """Return the reader of the form that most rows have; None for preferences, or if no line is an object."""
    if not objects:
        return None
    hits = Counter(number for row in objects for number, (names, _) in enumerate(_FORMS) if set(names).issubset(row))
    pairs = sum(any(schema.fits(row) for schema in PAIR_SCHEMAS) for row in objects)
    if pairs and pairs >= max(hits.values(), default=0):
        return None
    if hits:
        return _FORMS[max(hits, key=lambda number: (hits[number], -number))][1]
    try:
        schema_of(objects, file=file)
    except UnknownSchemaError as error:
        forms = "; ".join(" and ".join(names) for names, _ in _FORMS)
        raise BadDataError(
            f"{file} {error.problem} Rows that can be scored have {forms}, or are pairs. {error.advice}"
        ) from error
    return None


def _parse_messages(value: Value) -> tuple[RowKind, tuple[Turn, ...], tuple[str, ...]]:
    given = column(value, "messages")
    turns = turns_of_text(given) if isinstance(given, str) else given
    if not isinstance(turns, list | tuple) or not turns or not isinstance(turns[-1], Mapping):
        raise MalformedRowError("messages_not_turns", repr(given)[:_SEEN_CHARACTERS])
    if turns[-1].get("role") != "assistant":
        raise MalformedRowError("ends_without_assistant", turns[-1].get("role"))
    return RowKind.RESPONSE, read_prompt(turns[:-1]), (read_response(turns[-1].get("content")),)


def _one_response(name: str) -> _Parse:
    return lambda value: (RowKind.RESPONSE, _prompt(value), (_response(column(value, name)),))


def _several_responses(name: str) -> _Parse:
    def parse(value: Value) -> tuple[RowKind, tuple[Turn, ...], tuple[str, ...]]:
        given = column(value, name)
        if not isinstance(given, list | tuple):
            raise MalformedRowError(f"{name}_not_a_list", repr(given)[:_SEEN_CHARACTERS])
        if not given:
            raise MalformedRowError("no_response")
        return RowKind.RESPONSES, _prompt(value), tuple(_response(item) for item in given)

    return parse


_FORMS: tuple[tuple[tuple[str, ...], _Parse], ...] = (
    (("prompt", "responses"), _several_responses("responses")),
    (("prompt", "completions"), _several_responses("completions")),
    (("prompt", "response"), _one_response("response")),
    (("prompt", "completion"), _one_response("completion")),
    (("messages",), _parse_messages),
)


def _prompt(value: Value) -> tuple[Turn, ...]:
    """Text, turns, or a transcript, which may end with the word `Assistant:`."""
    given = column(value, "prompt")
    turns = turns_of_prompt(given)
    return read_prompt(given if turns is None else turns)


def _response(value: object) -> str:
    """Text, or a list with one turn of the assistant."""
    if not isinstance(value, list | tuple):
        return read_response(value)
    if len(value) == 1 and isinstance(value[0], Mapping) and value[0].get("role") == "assistant":
        return read_response(value[0].get("content"))
    raise MalformedRowError("completion_not_one_turn", repr(value)[:_SEEN_CHARACTERS])


def _read(line: Line, parse: _Parse, *, file: str) -> RowToScore:
    if line.value is None:
        return RowToScore(file, line.number, reason=line.reason, seen=line.seen)
    try:
        kind, prompt, responses = parse(line.value)
        if token := control_token_in((*(turn["content"] for turn in prompt), *responses)):
            raise MalformedRowError("control_tokens", token)
    except MalformedRowError as error:
        return RowToScore(file, line.number, reason=error.reason, seen=error.seen)
    return RowToScore(file, line.number, kind, prompt, responses)


def _pair(read: RowRead, *, file: str) -> RowToScore:
    if read.row is None:
        return RowToScore(file, read.line, RowKind.PAIR, reason=read.reason, seen=read.seen)
    pair = read.row.pair
    reason, seen = "", ""
    if token := control_token(read.row):
        reason, seen = "control_tokens", token
    elif has_equal_responses(read.row):
        reason, seen = "equal_responses", pair.chosen[:_SEEN_CHARACTERS]
    return RowToScore(
        file, read.line, RowKind.PAIR, pair.prompt, (pair.chosen, pair.rejected), read.row.is_tie, reason, seen
    )
