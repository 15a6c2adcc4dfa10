"""One object of a file of preferences to one row, in the schema that the file has (`containers.preference_columns`)."""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from containers.preference_columns import ARENA, HELPSTEER3, TRL, UnknownSchemaError, schema_of
from containers.stages.errors import BadDataError
from containers.stages.language_names import normalised_language

Value = Mapping[str, Any]
Turn = dict[str, str]

DEFAULT_DOMAIN = "general"
MAX_STRENGTH = 3

_ROLES = ("system", "user", "assistant")


class MalformedRowError(ValueError):
    """A row that cannot be used; `reason` names why, `seen` shows what was found."""

    def __init__(self, reason: str, seen: object = "") -> None:
        super().__init__(f"{reason}: {seen}")
        self.reason = reason
        self.seen = str(seen)


@dataclass(frozen=True, slots=True)
class Pair:
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


@dataclass(frozen=True, slots=True)
class PreferenceRow:
    """A well-formed row. Of a tie, `pair` holds the answers in their order in the file."""

    pair: Pair
    prompt_id: str
    is_tie: bool
    contradicts_annotators: bool


@dataclass(frozen=True)
class Schema:
    """A way of writing preferences, and the function that reads one object of it."""

    name: str
    parse: Callable[[Value], PreferenceRow]


def detect_schema(values: Iterable[Value], *, file: str) -> Schema:
    """The schema whose columns most of `values` have.

    Raises:
        BadDataError: not one of them has the columns of any schema; shows the columns found.
    """
    try:
        known = schema_of(values, file=file)
    except UnknownSchemaError as error:
        raise BadDataError(str(error)) from error
    return Schema(known.name, _PARSERS[known.name])


def _parse_helpsteer3(value: Value) -> PreferenceRow:
    prompt = _prompt(_column(value, "context"))
    response1 = _response(_column(value, "response1"))
    response2 = _response(_column(value, "response2"))
    preference = _integer(_column(value, "overall_preference"), "label_not_an_integer", "label_out_of_range")
    scores = _annotator_scores(value.get("individual_preference"))
    first_is_better = preference < 0
    return _row(
        value,
        prompt=prompt,
        chosen=response1 if first_is_better or preference == 0 else response2,
        rejected=response2 if first_is_better or preference == 0 else response1,
        margin=abs(preference),
        contradicts_annotators=bool(scores) and all(score * preference < 0 for score in scores),
    )


def _parse_trl(value: Value) -> PreferenceRow:
    chosen, rejected = _column(value, "chosen"), _column(value, "rejected")
    if value.get("prompt") is None:
        shared, chosen, rejected = _split_conversations(chosen, rejected)
        prompt = _prompt(shared)
    else:
        prompt = _prompt(value["prompt"])
    margin = value.get("margin")
    if margin is None:
        margin = 1.0
    elif isinstance(margin, bool) or not isinstance(margin, int | float) or not math.isfinite(margin) or margin < 0:
        raise MalformedRowError("margin_not_a_strength", margin)
    return _row(
        value,
        prompt=prompt,
        chosen=_last_turn(chosen, prompt),
        rejected=_last_turn(rejected, prompt),
        margin=float(margin),
    )


def _parse_arena(value: Value) -> PreferenceRow:
    prompt = _prompt(_column(value, "prompt"))
    response_a = _response(_column(value, "response_a"))
    response_b = _response(_column(value, "response_b"))
    winner = _column(value, "winner")
    name = winner.strip().lower() if isinstance(winner, str) else winner
    if name not in ("a", "b", "tie"):
        raise MalformedRowError("winner_unknown", winner)
    return _row(
        value,
        prompt=prompt,
        chosen=response_b if name == "b" else response_a,
        rejected=response_a if name == "b" else response_b,
        margin=0.0 if name == "tie" else 1.0,
    )


_PARSERS = {HELPSTEER3.name: _parse_helpsteer3, TRL.name: _parse_trl, ARENA.name: _parse_arena}


def _row(
    value: Value,
    *,
    prompt: tuple[Turn, ...],
    chosen: str,
    rejected: str,
    margin: float,
    contradicts_annotators: bool = False,
) -> PreferenceRow:
    domain, language = _optional_text(value, "domain"), _optional_text(value, "language")
    prompt_id = _digest(part for turn in prompt for part in (turn["role"], " ".join(turn["content"].lower().split())))
    pair = Pair(
        prompt=prompt,
        chosen=chosen,
        rejected=rejected,
        margin=float(margin),
        domain=domain.strip().lower() or DEFAULT_DOMAIN,
        language=normalised_language(language),
        pair_id=_digest((prompt_id, chosen, rejected))[:16],
    )
    return PreferenceRow(
        pair=pair, prompt_id=prompt_id[:16], is_tie=margin == 0, contradicts_annotators=contradicts_annotators
    )


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _column(value: Value, name: str) -> Any:
    if name not in value:
        raise MalformedRowError("missing_column", name)
    return value[name]


def _optional_text(value: Value, name: str) -> str:
    text = value.get(name)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise MalformedRowError(f"{name}_not_text", repr(text)[:80])
    return _clean(text)


def _integer(value: object, not_integer: str, out_of_range: str) -> int:
    """-3 … 3; 2.0 is 2, as parquet writers turn a column with one gap into floats."""
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


def _annotator_scores(annotators: object) -> list[int]:
    """Scores of the individual annotators; those who gave none are left out."""
    if annotators is None:
        return []
    if not isinstance(annotators, list | tuple) or not all(isinstance(item, Mapping) for item in annotators):
        raise MalformedRowError("bad_annotator_score", annotators)
    reason = "bad_annotator_score"
    return [_integer(item["score"], reason, reason) for item in annotators if item.get("score") is not None]


def _prompt(value: object) -> tuple[Turn, ...]:
    """Turns that end with the user's; plain text is one user turn."""
    if isinstance(value, str):
        if value.lstrip().startswith("[{") and '"role"' in value:
            raise MalformedRowError("prompt_is_encoded_json", value[:80])
        value = [{"role": "user", "content": value}] if value.strip() else []
    if not isinstance(value, list | tuple):
        raise MalformedRowError("prompt_not_text_or_turns", repr(value)[:80])
    turns = tuple(_turn(turn) for turn in value)
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


def _turn(value: object) -> Turn:
    if not isinstance(value, Mapping):
        raise MalformedRowError("prompt_not_text_or_turns", repr(value)[:80])
    role, content = value.get("role"), value.get("content")
    if role not in _ROLES:
        raise MalformedRowError("unknown_role", role)
    if not isinstance(content, str):
        raise MalformedRowError("turn_without_text", repr(content)[:80])
    if not content.strip():
        raise MalformedRowError("empty_turn", repr(content)[:80])
    return {"role": role, "content": _clean(content)}


def _response(value: object) -> str:
    if not isinstance(value, str):
        raise MalformedRowError("response_not_text", repr(value)[:80])
    if not value.strip():
        raise MalformedRowError("empty_response", repr(value)[:80])
    return _clean(value)


def _clean(text: str) -> str:
    """The text itself, if it can be written as UTF-8 and holds no NUL."""
    if "\0" in text:
        raise MalformedRowError("nul_character", text[:80])
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise MalformedRowError("lone_surrogate", ascii(text[error.start : error.start + 8])) from error
    return text


def _split_conversations(chosen: object, rejected: object) -> tuple[list[Any], list[Any], list[Any]]:
    """The turns that two conversations share, and what each goes on with."""
    if not isinstance(chosen, list) or not isinstance(rejected, list) or min(len(chosen), len(rejected)) < 2:
        raise MalformedRowError("prompt_not_to_be_found", f"{chosen!r:.60} …")
    length, longest = 0, min(len(chosen), len(rejected)) - 1
    while length < longest and chosen[length] == rejected[length]:
        length += 1
    return chosen[:length], chosen[length:], rejected[length:]


def _last_turn(value: object, prompt: tuple[Turn, ...]) -> str:
    """The one assistant turn of a completion; a conversation that repeats the prompt is cut there."""
    if not isinstance(value, list):
        return _response(value)
    if len(value) == len(prompt) + 1 and tuple(value[:-1]) == prompt:
        value = value[-1:]
    if len(value) != 1:
        raise MalformedRowError("completion_not_one_turn", f"{len(value)} turns")
    if isinstance(value[0], Mapping) and value[0].get("content") is not None and value[0].get("role") == "assistant":
        return _response(value[0]["content"])
    raise MalformedRowError("completion_not_one_turn", repr(value[0])[:80])
