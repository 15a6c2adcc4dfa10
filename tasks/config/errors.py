"""Mistakes of a configuration as messages: the key, the value found, the value wanted, a near match.

ConfigError                 the configuration cannot be used; a message for the user who wrote it
└── InvalidConfigError      the file can be read; the message lists all its mistakes, one line each
"""

import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from containers.contracts.variables import where_a_variable_is_set
from containers.near_words import nearest_word

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")

# `stage` identifies a section inside the contract; users do not set it.
_NOT_FOR_PEOPLE = frozenset({"stage", "reading"})
_MAX_SHOWN_CHARACTERS = 60

# Names of keys elsewhere, and the names of these keys here.
_OTHER_NAMES = {
    "pair_files": "suites",
    "max_samples": "max_rows",
    "num_padded_pairs": "num_edited_pairs",
    "maximum_length_slope": "maximum_length_effect",
}

_WANTED_TYPES = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text; put quotes around it if YAML reads it as something else",
    "path_type": "a path",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
    "dict_type": "a section of keys",
    "tuple_type": "a list",
    "list_type": "a list",
    "none_required": "null",
    "string_too_short": "some text",
    "too_short": "a list that is not empty",
}
_BOUNDS = {
    "greater_than": ("ge", "gt", "more than"),
    "greater_than_equal": ("ge", "ge", "at least"),
    "less_than": ("le", "lt", "less than"),
    "less_than_equal": ("le", "le", "at most"),
}

_TAG_ERRORS = ("union_tag_invalid", "union_tag_not_found")


class ConfigError(Exception):
    """The configuration cannot be used; the message says what, why and what to do."""


@dataclass(frozen=True)
class Mistake:
    """One mistake: the dotted path of the key, and what is wrong with it."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class InvalidConfigError(ConfigError):
    """All mistakes of one configuration; `source` is the file as the user named it."""

    def __init__(self, source: str, mistakes: Sequence[Mistake]) -> None:
        self.source = source
        self.mistakes = tuple(mistakes)
        count = f"{len(self.mistakes)} mistake" + ("s" if len(self.mistakes) != 1 else "")
        lines = "".join(f"\n  {mistake}" for mistake in self.mistakes)
        super().__init__(f"{source} has {count}:{lines}")


@overload
def all_of(one: Callable[[], A], two: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def all_of(
    one: Callable[[], A], two: Callable[[], B], three: Callable[[], C], four: Callable[[], D], five: Callable[[], E], /
) -> tuple[A, B, C, D, E]: ...
def all_of(*questions: Callable[[], Any]) -> tuple[Any, ...]:
    """Call all functions; return their results.

    Raises:
        ConfigError: some failed; lists the mistakes of all, those of one source together.
    """
    answers, errors = [], list[ConfigError]()
    for question in questions:
        try:
            answers.append(question())
        except ConfigError as error:
            errors.append(error)
    if not errors:
        return tuple(answers)
    mistakes = dict[str, dict[Mistake, None]]()
    for found in errors:
        if isinstance(found, InvalidConfigError):
            mistakes.setdefault(found.source, {}).update(dict.fromkeys(found.mistakes))
    told = [str(found) for found in errors if not isinstance(found, InvalidConfigError)]
    invalid = [InvalidConfigError(source, tuple(of_it)) for source, of_it in mistakes.items()]
    if len(invalid) == 1 and not told:
        raise invalid[0]
    raise ConfigError("\n".join(dict.fromkeys((*map(str, invalid), *told))))


class MistakesError(ValueError):
    """Raised by a model's own validator: mistakes that concern several keys."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(str(mistake) for mistake in self.mistakes))


def mistakes_of(error: ValidationError, model: type[BaseModel], *, prefix: str = "") -> list[Mistake]:
    """Convert every error of pydantic to a `Mistake` with this project's text.

    Args:
        model: the validated model; its fields are the known keys, with their help.
        prefix: put before each key.
    """
    found: list[Mistake] = []
    for item in error.errors():
        inner = item.get("ctx", {}).get("error")
        if isinstance(inner, MistakesError):
            found.extend(inner.mistakes)
            continue
        loc = item["loc"]
        named = [*_walked(loc, model)[1], *(["type"] if item["type"] in _TAG_ERRORS else [])]
        key = ".".join(str(part) for part in ([prefix, *named] if prefix else named))
        found.append(Mistake(key, _text(item["type"], loc, item["input"], item.get("ctx", {}), item["msg"], model)))
    return found


def near_match(word: str, known: Sequence[str]) -> str:
    """`Did you mean …?` for a misspelt word, else a list of the known words; empty if there are none."""
    if meant := nearest_word(word, known):
        return f"Did you mean `{meant}`?"
    return f"Known: {', '.join(f'`{name}`' for name in sorted(known))}." if known else ""


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys that a user may set in this section."""
    return [name for name in model.model_fields if name not in _NOT_FOR_PEOPLE]


def section_models(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The models in an annotation, also inside `| None`, `Annotated` and tuples; several where `type` tells which."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated, tuple):
        return tuple(model for part in typing.get_args(annotation) for model in section_models(part))
    return ()


def section_model(annotation: Any) -> type[BaseModel] | None:
    """The first model in an annotation; None if it has none."""
    return next(iter(section_models(annotation)), None)


def meant_place(loc: tuple[int | str, ...], model: type[BaseModel]) -> tuple[int | str, ...] | None:
    """The place that an unknown key probably means: a near match in its section, else that key elsewhere; or None.

    Args:
        loc: path of the unknown key, from `model`.
    """
    name, section = str(loc[-1]), _model_at(model, loc[:-1])
    here = keys_of(section) if section is not None else []
    meant = _OTHER_NAMES[name] if _OTHER_NAMES.get(name) in here else nearest_word(name, here)
    if meant:
        return (*loc[:-1], meant)
    # A right key in the wrong place: look below this section first, then everywhere.
    places: list[tuple[type[BaseModel] | None, tuple[int | str, ...]]] = [(section, loc[:-1]), (model, ())]
    found = (next(_paths_to(name, start, above), None) for start, above in places if start is not None)
    return next((place for place in found if place is not None), None)


def _text(
    kind: str, loc: tuple[int | str, ...], value: Any, ctx: Mapping[str, Any], said: str, model: type[BaseModel]
) -> str:
    field = _field_at(model, loc)
    help_text = f" {field.description.rstrip('.')}." if field is not None and field.description else ""
    if kind == "extra_forbidden":
        return " ".join((_unknown_key(loc, model), *_variables_in(loc, value)))
    if kind == "union_tag_not_found":
        return "is missing: it says which keys this item has; docs/configuration.md lists the types."
    if kind == "union_tag_invalid":
        expected = [part.strip("'") for part in ctx["expected_tags"].split(", ")]
        return f"`{ctx['tag']}` is no type of such an item. {near_match(str(ctx['tag']), expected)}"
    if kind == "missing":
        return f"is missing.{help_text}"
    if kind in _BOUNDS:
        side, name, words = _BOUNDS[kind]
        counted = str(loc[-1]).startswith("num_")
        too = {"ge": "too few" if counted else "too small", "le": "too many" if counted else "too large"}[side]
        return f"{_shown(value)} is {too}; wanted {words} {ctx[name]:g}.{help_text}"
    if kind in ("literal_error", "enum"):
        expected = [part.strip("'") for part in ctx["expected"].replace(" or ", ", ").split(", ")]
        meant = nearest_word(str(value), expected)
        hint = f" Did you mean `{meant}`?" if meant else ""
        return f"{_shown(value)} is not one of {', '.join(f'`{word}`' for word in expected)}.{hint}{help_text}"
    if kind == "value_error":
        return str(ctx["error"])
    if kind == "string_pattern_mismatch":
        return f"{_shown(value)} does not look as wanted (pattern {ctx['pattern']}).{help_text}"
    if kind in _WANTED_TYPES:
        return f"{_shown(value)} found, wanted {_WANTED_TYPES[kind]}.{help_text}"
    return f"{_shown(value)}: {said}.{help_text}"


def _variables_in(loc: tuple[int | str, ...], value: Any) -> Iterator[str]:
    """Where to set variables that the user wrote as keys; `nccl.buffsize` means NCCL_BUFFSIZE."""
    names = [str(name) for name in (loc[-1], *(value if isinstance(value, Mapping) else ()))]
    if "nccl" in loc[:-1]:
        names.append(f"NCCL_{loc[-1]}".upper())
    yield from (text for name in names if (text := where_a_variable_is_set(name)))


def _unknown_key(loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    meant = meant_place(loc, model)
    if meant is None:
        section = _model_at(model, loc[:-1])
        return f"unknown key. {near_match(str(loc[-1]), keys_of(section) if section is not None else [])}".rstrip()
    if meant[:-1] == loc[:-1]:
        return f"unknown key. Did you mean `{meant[-1]}`?"
    return f"unknown key here. Did you mean `{'.'.join(str(part) for part in meant)}`?"


def _paths_to(name: str, model: type[BaseModel], above: tuple[int | str, ...]) -> Iterator[tuple[int | str, ...]]:
    for key, field in model.model_fields.items():
        if key == name:
            yield (*above, key)
        inner = section_model(field.annotation)
        if inner is not None:
            yield from _paths_to(name, inner, (*above, key))


def _walked(loc: Sequence[int | str], model: type[BaseModel]) -> tuple[type[BaseModel] | None, list[int | str]]:
    """Return the model at that place, and the place as users write it: pydantic puts the `type` of an item into it."""
    models: tuple[type[BaseModel], ...] = (model,)
    named = list[int | str]()
    for part in loc:
        if len(models) > 1 and (of_type := [one for one in models if one.model_fields["type"].default == part]):
            models = (of_type[0],)
            continue
        named.append(part)
        if not isinstance(part, int):
            field = models[0].model_fields.get(part) if models else None
            models = section_models(field.annotation) if field is not None else ()
    return (models[0] if models else None), named


def _model_at(model: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel] | None:
    return _walked(loc, model)[0]


def _field_at(model: type[BaseModel], loc: Sequence[int | str]) -> FieldInfo | None:
    names = [place for place, part in enumerate(loc) if isinstance(part, str)]
    if not names:
        return None
    section = _model_at(model, loc[: names[-1]])
    return section.model_fields.get(str(loc[names[-1]])) if section is not None else None


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    text = " ".join(text.split())
    text = text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"
    return text if isinstance(value, int | float) or value is None else f"`{text}`"
