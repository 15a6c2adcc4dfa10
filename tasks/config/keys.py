"""Every key of a run's configuration as the models declare it: section, key, type, default, what it does. Pure."""

import enum
import types
import typing
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import annotated_types
from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from containers.contracts.hardware import GpuProfile
from containers.contracts.names import StageName
from tasks.config.errors import keys_of, section_model, section_models
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
    JsonValue: "anything",
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
        type_name: of items with different keys, the `type` that has these; empty for keys of all.
    """

    path: str
    text: str
    keys: tuple[ConfigKey, ...]
    is_item: bool = False
    type_name: str = ""


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
    for key, items in found:
        if len(items) == 1:
            yield from _sections(f"{key.path}.N", items[0], PydanticUndefined, is_item=True)
        elif items:
            yield from _sections_by_type(f"{key.path}.N", items)


def _sections_by_type(path: str, models: Sequence[type[BaseModel]]) -> Iterator[ConfigSection]:
    """The keys that items of all types have, then for each type its own."""
    shared = _shared_base(models)
    types_text = ", ".join(f"`{model.model_fields['type'].default}`" for model in models)
    kind = ConfigKey(f"{path}.type", "text", REQUIRED, f"Decides which further keys it has: {types_text}")
    yield ConfigSection(path, "What items of every type have.", (kind, *_own_keys(path, shared, ())), is_item=True)
    for model in models:
        name = str(model.model_fields["type"].default)
        sentence = " ".join((model.__doc__ or "").partition("\n\n")[0].split())
        yield ConfigSection(path, sentence, _own_keys(path, model, shared.model_fields), is_item=True, type_name=name)


def _shared_base(models: Sequence[type[BaseModel]]) -> type[BaseModel]:
    return next(base for base in models[0].__mro__ if all(issubclass(model, base) for model in models))


def _own_keys(path: str, model: type[BaseModel], known: Container[str]) -> tuple[ConfigKey, ...]:
    """The keys of the model without `type`, and without those known already, unless it changes them."""
    fields = model.model_fields.items()
    own = [
        (name, field)
        for name, field in fields
        if name != "type" and (name not in known or name in vars(model)["__annotations__"])
    ]
    return tuple(_key(f"{path}.{name}", field, field.default) for name, field in own)


def _keys(
    path: str, model: type[BaseModel], default: object
) -> Iterator[tuple[ConfigKey, tuple[type[BaseModel], ...]]]:
    """The keys of a section and of those inside it, each with the models of its items if it is a list of sections."""
    for name in keys_of(model):
        field, place = model.model_fields[name], f"{path}.{name}"
        own = getattr(default, name) if isinstance(default, model) else field.default
        inner, is_list = section_model(field.annotation), typing.get_origin(field.annotation) is tuple
        if inner is None or is_list or type(None) in typing.get_args(field.annotation):
            is_described = is_list and not (field.description or "").startswith(_FILLED_IN)
            yield _key(place, field, own), section_models(field.annotation) if is_described else ()
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
