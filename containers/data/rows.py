"""The types of a preference row, and the readers of its single values."""

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeGuard

from containers.data.language_names import normalised_language

Value = Mapping[str, Any]
Turn = dict[str, str]

DEFAULT_DOMAIN = "general"
MAX_STRENGTH = 3

_SEQUENCES = (list, tuple)
_ROLES = ("system", "user", "assistant")
# Frequent names are cached; a longer text is no name.
_NAMES_KEPT, _NAME_CHARACTERS = 256, 64
_CHARACTERS = 16


class MalformedRowError(ValueError):
    """A row that cannot be used; `reason` names why, `seen` shows what was found."""

    def __init__(self, reason: str, seen: object = "") -> None:
        super().__init__(f"{reason}: {seen}")
        self.reason = reason
        self.seen = str(seen)


class Row(Protocol):
    """A well-formed row of any kind, as filters see it."""

    @property
    def prompt(self) -> tuple[Turn, ...]:
        """The conversation, which ends with the user's turn."""

    @property
    def prompt_id(self) -> str:
        """Digest of the prompt."""

    @property
    def row_id(self) -> str:
        """Digest of everything that the row teaches."""

    @property
    def domain(self) -> str:
        """The subject; `general` where the row names none."""

    @property
    def language(self) -> str:
        """A language, or a programming language; `unknown` where the row names none."""

    @property
    def completions(self) -> tuple[str, ...]:
        """The texts beside the prompt that a model would read."""

    def in_language(self, language: str) -> Self:
        """Return the row with another language."""


class Pair(NamedTuple):
    """A preference: the same prompt answered twice, the better answer first.

    `margin` is the strength of the preference (HelpSteer3: 1 to 3; where a source names none, 1). `pair_id` is a
    digest of prompt, chosen and rejected.
    """

    prompt: tuple[Turn, ...]
    chosen: str
    rejected: str
    margin: float
    domain: str
    language: str
    pair_id: str


class PreferenceRow(NamedTuple):
    """A well-formed row. For a tie, `pair` holds the completions in file order.

    `agrees_with_scores`: whether the label agrees with the mean of the row's scores (annotators', judges'); None if
    one of them prefers neither side. `contradicts_annotators`: every single score says the opposite of the label.
    """

    pair: Pair
    prompt_id: str
    is_tie: bool
    contradicts_annotators: bool
    agrees_with_scores: bool | None = None

    @property
    def prompt(self) -> tuple[Turn, ...]:
        """The conversation that both completions answer."""
        return self.pair.prompt

    @property
    def row_id(self) -> str:
        """Digest of prompt, chosen and rejected."""
        return self.pair.pair_id

    @property
    def domain(self) -> str:
        """The subject; `general` where the row names none."""
        return self.pair.domain

    @property
    def language(self) -> str:
        """A language, or a programming language; `unknown` where the row names none."""
        return self.pair.language

    @property
    def completions(self) -> tuple[str, ...]:
        """Chosen and rejected."""
        return self.pair.chosen, self.pair.rejected

    def in_language(self, language: str) -> "PreferenceRow":
        """Return the row with another language."""
        return self._replace(pair=self.pair._replace(language=language))


def make_row(
    value: Value,
    *,
    prompt: tuple[Turn, ...],
    chosen: str,
    rejected: str,
    margin: float,
    signs: Sequence[float] = (),
) -> PreferenceRow:
    """Return the row with its digests.

    Args:
        value: the object that it was read from; holds domain and language.
        margin: strength of the preference; 0 is a tie.
        signs: the row's scores, above 0 where they agree with the label.

    Raises:
        MalformedRowError: domain or language is present, but no text.
    """
    domain, language = names_of(value)
    prompt_digest = _prompt_digest(prompt)
    pair_id = _digest(f"{prompt_digest}\0{chosen}\0{rejected}")[:_CHARACTERS]
    is_tie, mean = margin == 0, sum(signs)
    against_all = bool(signs) and max(signs) < 0
    agrees = None if is_tie or mean == 0 else mean > 0
    # Fields by position: naming them takes twice as long.
    pair = Pair(prompt, chosen, rejected, float(margin), domain, language, pair_id)
    return PreferenceRow(pair, prompt_digest[:_CHARACTERS], is_tie, against_all, agrees)


def names_of(value: Value) -> tuple[str, str]:
    """Return domain and language of a row; both have a name where the row has none.

    Raises:
        MalformedRowError: one is present, but no text.
    """
    return _name_in(value, "domain", _domain_name), _name_in(value, "language", _language_name)


def prompt_identity(turns: Iterable[Mapping[str, str]]) -> str:
    """Digest of roles and texts in 16 hexadecimal digits; it ignores case and white space."""
    return _prompt_digest(turns)[:_CHARACTERS]


def _prompt_digest(turns: Iterable[Mapping[str, str]]) -> str:
    return _digest("\0".join([f"{turn['role']}\0{_with_single_spaces(turn['content'].lower())}" for turn in turns]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _with_single_spaces(text: str) -> str:
    """The text with one space for any white space, and none at its ends."""
    # The space is the only printable white space; most texts of one line need no change.
    if text.isprintable() and "  " not in text and text == text.strip():
        return text
    return " ".join(text.split())


def column(value: Value, name: str) -> Any:
    """Return the value of that column.

    Raises:
        MalformedRowError: there is no such column.
    """
    if name not in value:
        raise MalformedRowError("missing_column", name)
    return value[name]


def _name_in(value: Value, column: str, named: "functools._lru_cache_wrapper[str]") -> str:
    """Apply `named` to the text of an optional column, or to an empty text if the row lacks it."""
    text = value.get(column)
    if text is None:
        return named("")
    if not isinstance(text, str):
        raise MalformedRowError(f"{column}_not_text", repr(text)[:80])
    name: str = (named if len(text) <= _NAME_CHARACTERS else named.__wrapped__)(text)
    return name


@functools.lru_cache(_NAMES_KEPT)
def _domain_name(text: str) -> str:
    return clean_text(text).strip().lower() or DEFAULT_DOMAIN


@functools.lru_cache(_NAMES_KEPT)
def _language_name(text: str) -> str:
    return normalised_language(clean_text(text))


def integer(value: object, not_integer: str, out_of_range: str) -> int:
    """Return an integer from -3 to 3; 2.0 is 2, because parquet writers turn a column with one gap into floats.

    Raises:
        MalformedRowError: the value is no integer, or out of range; each has its own reason.
    """
    if type(value) is int and -MAX_STRENGTH <= value <= MAX_STRENGTH:
        return value
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value != value
        or value in (math.inf, -math.inf)
    ):
        raise MalformedRowError(not_integer, repr(value))
    if value != int(value):
        raise MalformedRowError(not_integer, value)
    if abs(value) > MAX_STRENGTH:
        raise MalformedRowError(out_of_range, f"{value} (wanted: -{MAX_STRENGTH} to {MAX_STRENGTH})")
    return int(value)


def annotator_scores(annotators: object) -> list[int]:
    """Scores of the individual annotators; those who gave none are left out.

    Raises:
        MalformedRowError: no list of objects, or a score that is no integer from -3 to 3.
    """
    if annotators is None:
        return []
    if not isinstance(annotators, _SEQUENCES) or not all(map(_is_object, annotators)):
        raise MalformedRowError("bad_annotator_score", annotators)
    reason = "bad_annotator_score"
    return [integer(item["score"], reason, reason) for item in annotators if item.get("score") is not None]


def read_prompt(value: object) -> tuple[Turn, ...]:
    """Return the turns of a prompt, which end with the user's; plain text is one user turn.

    Raises:
        MalformedRowError: neither text nor turns, or the turns are out of order, empty or no text.
    """
    if isinstance(value, str):
        if value.lstrip().startswith("[{") and '"role"' in value:
            raise MalformedRowError("prompt_is_encoded_json", value[:80])
        value = [{"role": "user", "content": value}] if value.strip() else []
    if not isinstance(value, _SEQUENCES):
        raise MalformedRowError("prompt_not_text_or_turns", repr(value)[:80])
    turns = tuple([_turn(turn) for turn in value])
    if not turns:
        raise MalformedRowError("empty_prompt")
    if turns[-1]["role"] != "user":
        raise MalformedRowError("prompt_ends_without_user", turns[-1]["role"])
    wanted = "user"
    for turn in turns[1:] if turns[0]["role"] == "system" else turns:
        if turn["role"] != wanted:
            raise MalformedRowError("turns_do_not_alternate", " ".join(turn["role"] for turn in turns)[:80])
        wanted = "assistant" if wanted == "user" else "user"
    return turns


def _is_object(value: object) -> TypeGuard[Value]:
    # `isinstance` of an abstract class takes five times as long, and nearly every value is a dict.
    return type(value) is dict or isinstance(value, Mapping)


def _turn(value: object) -> Turn:
    if not _is_object(value):
        raise MalformedRowError("prompt_not_text_or_turns", repr(value)[:80])
    role, content = value.get("role"), value.get("content")
    if role not in _ROLES:
        raise MalformedRowError("unknown_role", role)
    if not isinstance(content, str):
        raise MalformedRowError("turn_without_text", repr(content)[:80])
    if not content or content.isspace():
        raise MalformedRowError("empty_turn", repr(content)[:80])
    return {"role": role, "content": clean_text(content)}


def read_response(value: object) -> str:
    """Return the text of a completion, which must not be empty.

    Raises:
        MalformedRowError: it is no text, or empty, or cannot be written as UTF-8.
    """
    if not isinstance(value, str):
        raise MalformedRowError("response_not_text", repr(value)[:80])
    if not value or value.isspace():
        raise MalformedRowError("empty_response", repr(value)[:80])
    return clean_text(value)


def clean_text(text: str) -> str:
    """Return the text unchanged.

    Raises:
        MalformedRowError: it cannot be written as UTF-8, or holds a NUL.
    """
    if "\0" in text:
        raise MalformedRowError("nul_character", text[:80])
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise MalformedRowError("lone_surrogate", ascii(text[error.start : error.start + 8])) from error
    return text
