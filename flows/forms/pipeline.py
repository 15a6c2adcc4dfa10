"""The form that starts a run from Prefect: every value is an override of one key of a named run configuration.

Type, bounds, choices and help of a field are those of the key in `RunConfig`; nothing is written down twice. What is
left empty is not overridden. So each run from the form can be repeated by `rlhf run -c … --set …`.
"""

import itertools
import json
import os
import shlex
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import MISSING, CoreSchema

from containers.contracts.names import CONTAINER_STAGES, StageName
from flows.forms.choices import require_allowed
from flows.forms.folders import require_inside, texts_of
from tasks.config.errors import ConfigError, InvalidConfigError, Mistake, near_match, section_model
from tasks.config.loading import LoadedConfig, config_files, load_run_config
from tasks.config.run import RunConfig
from tasks.config.yaml_reader import read_yaml_value

# Where `rlhf serve --configs` looks; the processes of the runs inherit it.
CONFIGS_VARIABLE = "RLHF_RUN_CONFIGS"
# What a field of the form holds that nobody filled in. None would stand in the schema as a default, which the page
# sends and the server's own check of the bounds then refuses.
LEFT_EMPTY: Any = MISSING
# The default of a field that a person has to fill in: the schema calls it required, for that is how pydantic reads it;
# and a run that comes without it all the same, from a schedule, starts and can say what is wrong.
TO_BE_CHOSEN: Any = ...

MORE_SETTINGS = "more_settings"

_BOUNDS_IN_WORDS = {
    "minimum": "at least {:,}",
    "exclusiveMinimum": "more than {:,}",
    "maximum": "at most {:,}",
    "exclusiveMaximum": "less than {:,}",
}
JsonSchema = dict[str, Any]
# What a text may hold. JSON can spell halves of characters that no text has; the server would take such a run, and from
# then on fail at every list that it stands in. No control characters either, but tabs and ends of lines.
_TEXT_PATTERN = r"^[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f\ud800-\udfff]*$"
_LONGEST_TEXT = 4096
_LONGEST_LINE = 20_000
_MOST_LINES = 100


class SetsKeys:
    """In an annotation: what this field holds becomes overrides of the run."""

    def overrides(self, value: object) -> list[str]:
        """`section.key=value` for the value.

        Raises:
            ConfigError: the value is of no use.
        """
        raise NotImplementedError


class SetsKey(SetsKeys):
    """In an annotation: this field overrides that key of the run, and takes what that key takes.

    Args:
        key: dotted, for example `train_reward_model.optimizer.learning_rate`.
        help_text: for people who have never seen the YAML; stands before the key's own description.
        choices: where a name stands for more than the key itself takes; asked whenever the schema is made.
        clears: keys that would stand beside the new value and contradict it, or make it have no effect.
    """

    def __init__(
        self,
        key: str,
        *,
        help_text: str = "",
        choices: Callable[[], Sequence[str]] | None = None,
        clears: tuple[str, ...] = (),
    ) -> None:
        self.key = key
        self.help_text = help_text
        self.choices = choices
        self.clears = clears

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """What the key itself is checked by."""
        if self.choices is not None:
            return handler(source)
        field = config_field(self.key)
        wanted: Any = field.annotation
        for rule in field.metadata:
            wanted = Annotated[wanted, rule]
        return handler.generate_schema(typing.Optional[wanted])  # noqa: UP045 - `|` does not take what is not a type

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Without null: a field that may be empty is plainer than a choice between two types."""
        schema = _without_null(handler(core_schema))
        if self.choices is not None:
            schema["enum"] = list(self.choices())
        schema = bounded_text(schema)
        schema["description"] = self._described(schema)
        return schema

    def overrides(self, value: object) -> list[str]:
        """`section.key=value` for the value."""
        return [*(f"{key}=null" for key in self.clears), f"{self.key}={_as_yaml(value)}"]

    def _described(self, schema: JsonSchema) -> str:
        field = config_field(self.key)
        own = "" if self.choices is not None else (field.description or "").partition("; null:")[0].rstrip(".")
        bounds = " and ".join(words.format(schema[name]) for name, words in _BOUNDS_IN_WORDS.items() if name in schema)
        lines = [part for part in (self.help_text.rstrip("."), own, bounds[:1].upper() + bounds[1:]) if part]
        return f"{'. '.join(lines)}. Empty: as in the run config (`{self.key}`)."


class NamesRunConfig:
    """In an annotation: the name of a run configuration, one of those that lie there when the schema is made."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """With the names as choices."""
        return handler(core_schema) | {
            "enum": sorted(run_configs()),
            "description": f"The run configuration to start from: a YAML file in {configs_folder()}. It holds every "
            "setting; the fields below change single ones.",
        }


class Help:
    """In an annotation: what stands beside the field."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """With the text."""
        return bounded_text(_without_null(handler(core_schema)) | {"description": self.text})


def bounded_text(schema: JsonSchema) -> JsonSchema:
    """The schema of a field, where it is free text with the characters and the length that a text may have."""
    if schema.get("type") == "array":
        items = {**schema["items"], "pattern": _TEXT_PATTERN, "maxLength": _LONGEST_LINE}
        return {**schema, "items": items, "maxItems": _MOST_LINES}
    if schema.get("type") != "string" or "enum" in schema:
        return schema
    return {"pattern": _TEXT_PATTERN, "maxLength": _LONGEST_TEXT, **schema}


def config_field(key: str) -> FieldInfo:
    """The field of `RunConfig` behind a dotted key.

    Raises:
        KeyError: there is none.
    """
    *sections, name = key.split(".")
    model: Any = RunConfig
    for section in sections:
        model = section_model(model.model_fields[section].annotation)
    found: FieldInfo = model.model_fields[name]
    return found


def configs_folder() -> Path:
    """Where the run configurations lie that a form offers."""
    named = os.environ.get(CONFIGS_VARIABLE)
    found = config_files("runs")
    return Path(named) if named else found[0].parent if found else Path("configs/runs")


def run_configs() -> dict[str, Path]:
    """Name → file of every run configuration that a form offers."""
    return {path.stem: path for path in sorted(configs_folder().glob("[!.]*.y*ml"))}


def gpu_profiles() -> list[str]:
    """Names of the GPU profiles."""
    return [path.stem for path in config_files("gpu_profiles")]


def stages_to_name() -> list[str]:
    """The stages that a run may end after, or begin again from."""
    return [stage.value for stage in CONTAINER_STAGES if stage is not StageName.WRITE_REPORT]


def load_form(
    form: Callable[..., object], values: Mapping[str, Any], *, fixed: Sequence[str] = ()
) -> tuple[LoadedConfig, str]:
    """The checked run that the values ask for, and the command that repeats it.

    Args:
        form: the function whose annotated parameters are the fields.
        values: what was filled in, by name of the parameter.
        fixed: further overrides; they win.

    Raises:
        ConfigError: with every mistake.
    """
    path = chosen_config(values)
    require_inside(values_given(values), lines=MORE_SETTINGS)
    by_field = overrides_by_field(form, values)
    overrides = [*itertools.chain.from_iterable(by_field.values()), *fixed]
    lasting = [item for item in overrides if not item.startswith("run.again_from=")]  # a repeat goes on instead
    command = shlex.join(["rlhf", "run", "-c", str(path), *(word for item in lasting for word in ("--set", item))])
    with told_by_field(by_field):
        loaded = load_run_config(path, overrides=overrides)
    require_allowed(loaded.config, path)
    return loaded, command


def overrides_by_field(form: Callable[..., object], values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Field that was filled in → `section.key=value`, in the form's order; `more_settings` last, so they win."""
    found, given = dict[str, list[str]](), values_given(values)
    for name, annotation in typing.get_type_hints(form, include_extras=True).items():
        sets = next((item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, SetsKeys)), None)
        if sets is not None and name in given:
            before = set(itertools.chain.from_iterable(found.values()))
            found[name] = [item for item in sets.overrides(given[name]) if item not in before]
    return {**found, MORE_SETTINGS: further_settings(given)}


def further_settings(values: Mapping[str, Any]) -> list[str]:
    """The lines under `more_settings` that hold something; raises InvalidConfigError where it is no list of texts."""
    return [line for line in texts_of(values_given(values).get(MORE_SETTINGS, ()), field=MORE_SETTINGS) if line]


@contextmanager
def told_by_field(by_field: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Mistakes name the field of the form that they were made in, instead of `--set` of the command line.

    Args:
        by_field: as `overrides_by_field`.

    Raises:
        InvalidConfigError: the one that was raised inside, in the form's words.
    """
    try:
        yield
    except InvalidConfigError as error:
        mistakes = [Mistake(mistake.key, _in_the_form(mistake.text, by_field)) for mistake in error.mistakes]
        raise InvalidConfigError(error.source, mistakes) from error


def _in_the_form(text: str, by_field: Mapping[str, Sequence[str]]) -> str:
    for name, overrides in by_field.items():
        for override in overrides:
            told = f"{name}: {override}" if name == MORE_SETTINGS else f"the field {name}"
            text = text.replace(f"--set {override}", told)
    return text.replace("--set ", "")


def values_given(values: Mapping[str, Any]) -> dict[str, Any]:
    """What was filled in; a text that was typed and deleted again counts as empty."""
    empty = (LEFT_EMPTY, TO_BE_CHOSEN, None)
    return {name: value for name, value in values.items() if value != "" and not any(value is one for one in empty)}


def chosen_config(values: Mapping[str, Any]) -> Path:
    """The file of the run configuration that was chosen under `start_from`.

    Raises:
        ConfigError: none was chosen, or there is none of that name.
    """
    name, files = str(values_given(values).get("start_from", "")), run_configs()
    if name in files:
        return files[name]
    if name:
        there = near_match(name, sorted(files)) or f"There is none in {configs_folder().absolute()}."
        text = f"`{name}` is no run configuration. {there}"
    else:
        text = (
            "no run configuration was chosen, so nothing was started. A schedule needs one too: edit it on the page "
            f"of its deployment and fill in `start_from` under Parameter Overrides. Wanted: {_one_of(files)}."
        )
    raise InvalidConfigError("The form", [Mistake("start_from", text)])


def _one_of(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or f"a YAML file in {configs_folder().absolute()}"


def _as_yaml(value: object) -> str:
    """The value as a person would write it after `--set key=`."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        is_plain = read_yaml_value(value, shown=value) == value
    except ConfigError:
        is_plain = False
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def _without_null(schema: JsonSchema) -> JsonSchema:
    kinds = [kind for kind in schema.get("anyOf", ()) if kind.get("type") != "null"]
    if len(kinds) != 1:
        return schema
    return {**kinds[0], **{name: value for name, value in schema.items() if name not in ("anyOf", "default")}}
