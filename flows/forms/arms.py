"""The form of `rlhf-arms` in Prefect: a comparison of configs/arms, and keys that change in all of its arms."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import yaml
from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from flows.forms.choices import require_allowed
from flows.forms.folders import require_inside
from flows.forms.pipeline import (
    MORE_SETTINGS,
    JsonSchema,
    configs_folder,
    further_settings,
    told_by_field,
    values_given,
)
from tasks.arms.load import load_comparison
from tasks.config.errors import InvalidConfigError, Mistake, near_match

_FIELD = "start_from"


class NamesComparison:
    """Annotation of the field that names a comparison."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Schema with the names as choices."""
        return handler(core_schema) | {
            "enum": sorted(comparisons()),
            "description": f"The comparison: a YAML file in {_folder()}. It names the run that all arms start from, "
            "and the keys in which they differ.",
        }


ComparisonName: TypeAlias = Annotated[str, NamesComparison()]


def _folder() -> Path:
    return configs_folder().parent / "arms"


def comparisons() -> dict[str, Path]:
    """Name → file of every comparison that the form offers: those in `arms`, beside the run configurations."""
    return {path.stem: path for path in sorted(_folder().glob("[!.]*.y*ml"))}


def checked_arms_form(values: Mapping[str, Any]) -> tuple[Path, list[str], str]:
    """Return the chosen comparison, the keys of the form for all arms, and the command that repeats it.

    Raises:
        ConfigError: with every mistake; also for keys that only a file may set.
    """
    path, given = _chosen(values), values_given(values)
    profile = [f"gpu_profile={given['gpu_profile']}"] if "gpu_profile" in given else []
    settings = [*profile, *further_settings(values)]
    require_inside(given, lines=MORE_SETTINGS)
    with told_by_field({MORE_SETTINGS: further_settings(values), "gpu_profile": profile}):
        changed, served = load_comparison(path, overrides=settings), load_comparison(path)
    for arm, as_served in zip(changed.arms, served.arms, strict=True):
        require_allowed(arm.config, path, served=yaml.safe_load(as_served.loaded.yaml_text))
    sets = (word for item in settings for word in ("--set", item))
    return path, settings, shlex.join(["rlhf", "arms", "-c", str(path), *sets])


def _chosen(values: Mapping[str, Any]) -> Path:
    name, files = str(values_given(values).get(_FIELD, "")), comparisons()
    if name in files:
        return files[name]
    wanted = near_match(name, sorted(files)) or f"There is none in {_folder().absolute()}."
    text = f"`{name}` is no comparison. {wanted}" if name else f"no comparison was chosen. {wanted}"
    raise InvalidConfigError("The form", [Mistake(_FIELD, text)])
