"""The form that starts a run from Prefect: every value is an override of one key of a named run configuration.

Type, bounds, choices and help of a field are those of the key in `RunConfig`; nothing is written down twice. An empty
field overrides nothing. So `rlhf run -c … --set …` can repeat each run from the form.
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

from flows.forms.choices import require_allowed
from flows.forms.folders import require_inside, texts_of
from tasks.config.errors import ConfigError, InvalidConfigError, Mistake, near_match, section_model
from tasks.config.loading import LoadedConfig, config_files, load_run_config
from tasks.config.run import RunConfig
from tasks.config.yaml_reader import read_yaml_value
from tasks.pipeline.stages import STAGES

# Where `rlhf serve --configs` looks; the processes of the runs inherit it.
CONFIGS_VARIABLE = "RLHF_RUN_CONFIGS"
# Value of an empty field. None would be a default in the schema; the page would send it, and the server's check of the
# bounds would refuse it.
LEFT_EMPTY: Any = MISSING
# Default of a required field: pydantic reads it so for the schema. A scheduled run without the value still starts, and
# can say what is wrong.
TO_BE_CHOSEN: Any = ...

MORE_SETTINGS = "more_settings"

_BOUNDS_IN_WORDS = {
    "minimum": "at least {:,}",
    "exclusiveMinimum": "more than {:,}",
    "maximum": "at most {:,}",
    "exclusiveMaximum": "less than {:,}",
}
JsonSchema = dict[str, Any]
# Allowed characters of a text. JSON can hold halves of characters (surrogates); the server would take such a run, and
# then fail at every list with it. No control characters either, except tabs and line ends.
_TEXT_PATTERN = r"^[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f\ud800-\udfff]*$"
_LONGEST_TEXT = 4096
_LONGEST_LINE = 20_000
_MOST_LINES = 100


class SetsKeys:
    """Annotation of a field whose value becomes overrides of the run.

    Attributes:
        holds_yaml: whether its value is a list of YAML texts.
    """

    holds_yaml = False

    def overrides(self, value: object) -> list[str]:
        """`section.key=value` for the value.

        Raises:
            ConfigError: the value cannot be used.
        """
        raise NotImplementedError


class SetsKey(SetsKeys):
    """Annotation of a field that overrides one key of the run, and takes what the key takes.

    Args:
        key: dotted, for example `train_reward_model.optimizer.learning_rate`.
        help_text: for users who have never seen the YAML; shown before the key's own description.
        choices: returns the allowed names, for a key that is chosen by name; called whenever the schema is made.
        clears: keys to set to null, since they would contradict the new value or cancel its effect.
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
        """Schema with the checks of the key itself."""
        if self.choices is not None:
            return handler(source)
        field = config_field(self.key)
        wanted: Any = field.annotation
        for rule in field.metadata:
            wanted = Annotated[wanted, rule]
        return handler.generate_schema(typing.Optional[wanted])  # noqa: UP045 - `|` does not take what is not a type

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Schema without null: a field that may be empty is simpler than a choice between two types."""
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
    """Annotation of a field: the name of a run configuration that exists when the schema is made."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Schema with the names as choices."""
        return handler(core_schema) | {
            "enum": sorted(run_configs()),
            "description": f"The run configuration to start from: a YAML file in {configs_folder()}. It holds every "
            "setting; the fields below change single ones.",
        }


class Help:
    """Annotation with the help text of a field."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Schema with the text."""
        return bounded_text(_without_null(handler(core_schema)) | {"description": self.text})


def bounded_text(schema: JsonSchema) -> JsonSchema:
    """Schema of a field; for free text, with the allowed characters and length."""
    if schema.get("type") == "array":
        items = {**schema["items"], "pattern": _TEXT_PATTERN, "maxLength": _LONGEST_LINE}
        return {**schema, "items": items, "maxItems": _MOST_LINES}
    if schema.get("type") != "string" or "enum" in schema:
        return schema
    return {"pattern": _TEXT_PATTERN, "maxLength": _LONGEST_TEXT, **schema}


def config_field(key: str) -> FieldInfo:
    """The field of `RunConfig` for a dotted key.

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
    """Folder of the run configurations that a form offers."""
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
    return [stage.name.value for stage in STAGES]


def load_form(
    form: Callable[..., object], values: Mapping[str, Any], *, fixed: Sequence[str] = ()
) -> tuple[LoadedConfig, str]:
    """Return the checked run of the values, and the command that repeats it.

    Args:
        form: the function whose annotated parameters are the fields.
        values: the filled-in values by name of the parameter.
        fixed: further overrides; they win.

    Raises:
        ConfigError: with every mistake.
    """
    path = chosen_config(values)
    yaml_fields = [name for name, sets in _fields(form).items() if sets.holds_yaml]
    require_inside(values_given(values), lines=MORE_SETTINGS, yaml_fields=yaml_fields)
    by_field = overrides_by_field(form, values)
    overrides = [*itertools.chain.from_iterable(by_field.values()), *fixed]
    lasting = [item for item in overrides if not item.startswith("run.again_from=")]  # a repeat goes on instead
    command = shlex.join(["rlhf", "run", "-c", str(path), *(word for item in lasting for word in ("--set", item))])
    with told_by_field(by_field):
        loaded = load_run_config(path, overrides=overrides)
    require_allowed(loaded.config, path)
    return loaded, command


def overrides_by_field(form: Callable[..., object], values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Filled-in field → its `section.key=value`, in the form's order; `more_settings` last, so they win."""
    found, given = dict[str, list[str]](), values_given(values)
    for name, sets in _fields(form).items():
        if name in given:
            before = set(itertools.chain.from_iterable(found.values()))
            found[name] = [item for item in sets.overrides(given[name]) if item not in before]
    return {**found, MORE_SETTINGS: further_settings(given)}


def _fields(form: Callable[..., object]) -> dict[str, SetsKeys]:
    hints = typing.get_type_hints(form, include_extras=True).items()
    return {
        name: sets
        for name, annotation in hints
        for sets in getattr(annotation, "__metadata__", ())
        if isinstance(sets, SetsKeys)
    }


def further_settings(values: Mapping[str, Any]) -> list[str]:
    """Non-empty lines of `more_settings`; raises InvalidConfigError if it is no list of texts."""
    return [line for line in texts_of(values_given(values).get(MORE_SETTINGS, ()), field=MORE_SETTINGS) if line]


@contextmanager
def told_by_field(by_field: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Name the form's field in mistakes, instead of `--set` of the command line.

    Args:
        by_field: as `overrides_by_field`.

    Raises:
        InvalidConfigError: the one that was raised inside, with the fields' names.
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
    """The filled-in values; a text that was typed and deleted again counts as empty."""
    empty = (LEFT_EMPTY, TO_BE_CHOSEN, None)
    return {name: value for name, value in values.items() if value != "" and not any(value is one for one in empty)}


def chosen_config(values: Mapping[str, Any]) -> Path:
    """File of the run configuration that was chosen under `start_from`.

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
    """The value as a user would write it after `--set key=`."""
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
