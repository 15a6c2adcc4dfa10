"""The readable part of a configuration with mistakes, so that the rules about the rest are checked too."""

import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from tasks.config.errors import meant_place, section_models

Place = tuple[int | str, ...]
Model = TypeVar("Model", bound=BaseModel)


def readable_part(model: type[Model], tree: Mapping[str, Any], error: ValidationError) -> Model:
    """An instance of `model` without the fields that have a mistake; reading one raises AttributeError.

    Args:
        error: what was wrong with `tree`.
    """
    broken: set[Place] = set()
    for item in error.errors():
        broken.add(item["loc"])
        # A misspelt key leaves its field at an unwanted default, which says nothing about other keys.
        if item["type"] == "extra_forbidden" and (meant := meant_place(item["loc"], model)):
            broken.add(meant)
    return _part(model, tree, broken)


def reads_what_is_missing(error: AttributeError) -> bool:
    """Whether the error comes from a field that `readable_part` left out."""
    return isinstance(error.obj, BaseModel) and error.name in type(error.obj).model_fields


def _part(model: type[Model], tree: Mapping[str, Any], broken: Collection[Place]) -> Model:
    values, missing = {}, []
    for name, field in model.model_fields.items():
        below = [place[1:] for place in broken if place and place[0] == name]
        if not below:
            values[name] = _valid_value(model, name, tree)
        elif (partial := _partial_value(field, tree.get(name), below)) is not None:
            values[name] = partial
        else:
            missing.append(name)
    part = model.model_construct(**values)
    for name in missing:
        part.__dict__.pop(name, None)  # model_construct put its default there
    return part


def _valid_value(model: type[BaseModel], name: str, tree: Mapping[str, Any]) -> Any:
    """What the model makes of a field without a mistake, through its field's validators too."""
    field = model.model_fields[name]
    if name not in tree:
        return field.get_default(call_default_factory=True)
    validators = [item for item in model.__pydantic_decorators__.field_validators.values() if name in item.info.fields]
    value = tree[name]
    for validator in validators:
        if validator.info.mode == "before":
            value = validator.func(value)
    adapter: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation())
    value = adapter.validate_python(value)
    for validator in validators:
        if validator.info.mode == "after":
            value = validator.func(value)
    return value


def _partial_value(field: FieldInfo, raw: Any, broken: Collection[Place]) -> Any:
    """A section, or a list of them, without its broken fields; None where nothing of it can be read."""
    models = section_models(field.annotation)
    if not models:
        return None
    if isinstance(raw, dict):
        # If the field is a list of sections, a single section cannot be read.
        return None if _is_list(field.annotation) else _part(models[0], raw, broken)
    if isinstance(raw, list | tuple) and all(isinstance(item, dict) for item in raw):
        below = [[place[1:] for place in broken if place and place[0] == index] for index in range(len(raw))]
        items = [_item(models, item, places) for item, places in zip(raw, below, strict=True)]
        return None if None in items else tuple(items)
    return None


def _item(models: Sequence[type[BaseModel]], raw: Mapping[str, Any], broken: Collection[Place]) -> Any:
    """An item of a list without its broken fields; None if its `type` does not say what it is."""
    if len(models) == 1:
        return _part(models[0], raw, broken)
    kind = raw.get("type")
    model = next((one for one in models if one.model_fields["type"].default == kind), None)
    if model is None:
        return None
    # pydantic puts the type into the place of a mistake.
    places = [place[1:] if place and place[0] == kind else place for place in broken]
    return _part(model, {"name": kind, **raw}, places)


def _is_list(annotation: Any) -> bool:
    return any(typing.get_origin(part) is tuple for part in (annotation, *typing.get_args(annotation)))
