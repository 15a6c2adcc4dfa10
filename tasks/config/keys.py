"""Every key of a run's configuration as the models declare it: section, key, type, default, what it does. Pure."""

import enum
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from containers.contracts.hardware import GpuProfile
from containers.contracts.names import StageName
from tasks.config.errors import keys_of, section_model
from tasks.config.run import RunConfig

REQUIRED = "required"
OWN_DEFAULTS = "its defaults"
# Descriptions of keys that the run fills in begin so; users do not set the keys below them.
_FILLED_IN = "Leave it out"

# Plain names of Python types.
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "int",
    float: "float",
    str: "text",
    Path: "path",
    StageName: "name of a stage",
    GpuProfile: "name of a profile, or section",
}
_FAR_AWAY = 1_000_000
_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


@dataclass(frozen=True)
class ConfigKey:
    """One key.

    Attributes:
        path: dotted, from the top of the file; `N` is the number of an item in a list.
        kind: the type of its value, as text.
        default: as YAML writes it; `required`, or `its defaults` for a section that exists by default.
        text: what it does; without a full stop.
    """

    path: str
    kind: str
    default: str
    text: str


@dataclass(frozen=True)
class ConfigSection:
    """A section of the file, or the items of a list in it.

    Attributes:
        path: dotted, as those of its keys; empty for the top of the file.
        text: one sentence.
        keys: with those of the sections inside it.
        is_item: whether it describes each item of a list.
    """

    path: str
    text: str
    keys: tuple[ConfigKey, ...]
    is_item: bool = False


def config_sections() -> tuple[ConfigSection, ...]:
    """The top of the file, then every section in its order, each followed by the lists of sections inside it."""
    top = tuple(_key(name, field, field.default) for name, field in RunConfig.model_fields.items())
    sections = [ConfigSection("", "The keys at the top of the file.", top)]
    for name, field in RunConfig.model_fields.items():
        model = section_model(field.annotation)
        if model is not None:
            sections += _sections(name, model, field.default)
    return tuple(sections)


def _sections(path: str, model: type[BaseModel], default: object, *, is_item: bool = False) -> Iterator[ConfigSection]:
    found = list(_keys(path, model, default))
    sentence = " ".join((model.__doc__ or "").partition("\n\n")[0].split())
    yield ConfigSection(path, sentence, tuple(key for key, _ in found), is_item=is_item)
    for key, item in found:
        if item is not None:
            yield from _sections(f"{key.path}.N", item, PydanticUndefined, is_item=True)


def _keys(path: str, model: type[BaseModel], default: object) -> Iterator[tuple[ConfigKey, type[BaseModel] | None]]:
    """The keys of a section and of those inside it, each with the model of its items if it is a list of sections."""
    for name in keys_of(model):
        field, place = model.model_fields[name], f"{path}.{name}"
        own = getattr(default, name) if isinstance(default, model) else field.default
        inner, is_list = section_model(field.annotation), typing.get_origin(field.annotation) is tuple
        if inner is None or is_list or type(None) in typing.get_args(field.annotation):
            is_described = is_list and not (field.description or "").startswith(_FILLED_IN)
            yield _key(place, field, own), inner if is_described else None
        if inner is not None and not is_list:
            yield from _keys(place, inner, own)


def _key(path: str, field: FieldInfo, default: object) -> ConfigKey:
    kind = _kind(field.annotation, _bounds(field.metadata))
    shown = "{}" if _is_mapping(field.annotation) and not default else _default_text(default)
    return ConfigKey(path, kind, shown, (field.description or "").rstrip("."))


def _default_text(default: object) -> str:
    """The default as YAML writes it."""
    if default is PydanticUndefined:
        return REQUIRED
    if isinstance(default, BaseModel):
        return OWN_DEFAULTS
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:.12g}".replace("e-0", "e-").replace("e+0", "e+")
    if isinstance(default, tuple):
        return f"[{', '.join(_default_text(item) for item in default)}]"
    return str(default) or '""'


def _kind(annotation: Any, bounds: Mapping[str, float]) -> str:
    """The type as text; `bounds` are those of the numbers in it."""
    if annotation in _WORDS:
        return f"{_WORDS[annotation]}{_range(bounds)}" if annotation in (int, float) else _WORDS[annotation]
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(parts[0], {**bounds, **_bounds(parts[1:])})
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, parts))}" if len(parts) > 1 else f"only {parts[0]}"
    if origin in (typing.Union, types.UnionType):
        kinds = [_kind(part, bounds).removeprefix("only ") for part in parts if part is not type(None)]
        return ", or ".join([*kinds, "null"] if type(None) in parts else kinds)
    if _is_mapping(annotation):
        return f"map of names to {_kind(parts[1] if origin is dict else str, {})}"
    if origin is tuple:
        return "list of sections" if section_model(parts[0]) else f"list of {_kind(parts[0], {})}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return f"one of {', '.join(str(item.value) for item in annotation)}"
    raise TypeError(f"{annotation!r} has no text yet; add one in {__name__}.")


def _is_mapping(annotation: Any) -> bool:
    """Whether YAML writes it as a mapping; a tuple of pairs of text is one too."""
    pairs: Any = tuple[tuple[str, str], ...]
    return typing.get_origin(annotation) is dict or annotation == pairs


def _bounds(metadata: typing.Iterable[Any]) -> dict[str, float]:
    """Lower and upper bounds of numbers, by `ge`, `gt`, `le` and `lt`; without bounds that no run reaches."""
    found: dict[str, float] = {}
    for item in metadata:
        if isinstance(item, FieldInfo):
            found.update(_bounds(item.metadata))
        for name in _SIGNS:
            if isinstance(item, annotated_types.BaseMetadata) and hasattr(item, name):
                found[name] = getattr(item, name)
    for name in ("ge", "le"):
        if abs(found.get(name, 0)) >= _FAR_AWAY:
            del found[name]
    return found


def _range(bounds: Mapping[str, float]) -> str:
    """The bounds as text: ` ≥ 1`, ` in (0, 1]`; empty without bounds."""
    low = next((name for name in ("gt", "ge") if name in bounds), None)
    high = next((name for name in ("lt", "le") if name in bounds), None)
    if low and high:
        opening, closing = "(" if low == "gt" else "[", ")" if high == "lt" else "]"
        return f" in {opening}{_number(bounds[low])}, {_number(bounds[high])}{closing}"
    one = low or high
    if one is None:
        return ""
    return f" {_SIGNS[one]} {_number(bounds[one])}"


def _number(value: float) -> str:
    return "2^32" if value == 2**32 else f"{value:g}" if value < 1_000_000 else str(value)
