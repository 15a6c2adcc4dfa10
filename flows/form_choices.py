"""What a form leaves to the run configuration: with what stages are started, and where options of a database lead."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.config_errors import InvalidConfigError, Mistake
from flows.form_folders import require_outputs_inside
from flows.run_config import RunConfig, RuntimeSection
from flows.yaml_reading import read_yaml_file

_RUNTIME_KEYS = ("kind", "image")
_DATABASE = "tracking.mlflow_uri"


def require_allowed(config: RunConfig, path: Path) -> None:
    """Refuse a run in which a form decides what is left to the run configuration.

    Values are compared, not lines: there are many ways to write a key.

    Args:
        config: the run as the form changed it.
        path: the run configuration that it starts from.

    Raises:
        InvalidConfigError: with every such value; also as `require_outputs_inside`.
        ConfigError: the file cannot be read any more.
    """
    tree = read_yaml_file(path, shown=str(path))
    mistakes = [*_runtime_mistakes(config, tree, path), *_database_mistakes(config, tree, path)]
    if mistakes:
        raise InvalidConfigError("The form", mistakes)
    require_outputs_inside(config)


def _runtime_mistakes(config: RunConfig, tree: Mapping[str, Any], path: Path) -> Iterator[Mistake]:
    section, default = _section(tree, "runtime"), RuntimeSection()
    for name in _RUNTIME_KEYS:
        served, found = section.get(name, getattr(default, name)), getattr(config.runtime, name)
        if found != served:
            yield Mistake(
                f"runtime.{name}",
                f"`{_shown(found)}` found, but a form does not choose it: with what a stage is started decides what "
                f"its code can reach. The run configuration {path} does, and says `{_shown(served)}`. Leave it out of "
                "the form, or start from a run configuration that sets it.",
            )


def _database_mistakes(config: RunConfig, tree: Mapping[str, Any], path: Path) -> Iterator[Mistake]:
    found = config.tracking.mlflow_uri
    if found is None or found == _section(tree, "tracking").get("mlflow_uri"):
        return
    if found.lower().startswith(("http://", "https://")):
        return
    if "?" in found or "%" in found or found.partition("://")[2].lstrip("/").lower().startswith("file:"):
        yield Mistake(
            _DATABASE,
            f"`{_shown(found)}` has options (`?`), escaped characters (`%`) or a second address (`file:`), which can "
            "lead to another place than it seems. A form names a database without them, such as sqlite:///outputs/"
            f"mlflow.db; one with options stands in a run configuration such as {path}.",
        )


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = tree.get(name)
    return section if isinstance(section, Mapping) else {}


def _shown(value: object) -> str:
    return "null" if value is None else str(value)[:200]
