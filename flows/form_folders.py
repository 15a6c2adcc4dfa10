"""What a form may name: folders to write to and files to read below the folder that is served, or that were allowed.

Whoever fills in a form has no shell on the machine, and the run has the files of whoever serves. A run configuration
in the served folder is written by whoever serves, and may name files to read anywhere.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flows.config_errors import ConfigError, InvalidConfigError, Mistake
from flows.run_config import RunConfig
from flows.yaml_reading import read_yaml_value

# Set by `rlhf serve --allow-folder`; the processes of the runs inherit it.
ALLOWED_VARIABLE = "RLHF_ALLOWED_FOLDERS"
_FILE_SCHEMES = ("file", "sqlite")
_LONGEST_PATH = 4096


def require_inside(values: Mapping[str, Any], *, lines: str) -> None:
    """Refuse values of a form that name a place outside, before anything is read there.

    Args:
        values: what was filled in, by field.
        lines: the field that holds `section.key=value`.

    Raises:
        InvalidConfigError: with every one of them.
    """
    mistakes = [
        Mistake(field, _outside_text(text))
        for field, value in values.items()
        for text in _texts(_value_of(value, is_lines=field == lines))
        if _leads_outside(text)
    ]
    if mistakes:
        raise InvalidConfigError("The form", mistakes)


def require_outputs_inside(config: RunConfig) -> None:
    """Refuse a run whose folders lie outside, whether the form or its run configuration names them.

    Raises:
        InvalidConfigError: with every one of them.
    """
    named = {"run.output_dir": str(config.output_dir), "run.store_dir": str(config.store_dir)}
    uri = config.tracking.mlflow_uri
    if uri is not None and (path := _path_in(uri)) is not None:
        named["tracking.mlflow_uri"] = str(path)
    mistakes = [
        Mistake(key, _outside_text(path))
        for key, path in named.items()
        if not _is_inside(Path(path)) or _is_hidden(Path(path))
    ]
    if mistakes:
        raise InvalidConfigError("The form", mistakes)


def _value_of(value: Any, *, is_lines: bool) -> Any:
    if not is_lines or not isinstance(value, list | tuple):
        return value
    found = []
    for line in value:
        text = str(line).partition("=")[2]
        try:
            found.append(read_yaml_value(text, shown=""))
        except ConfigError:  # told when the run is checked, which reads no file for it
            found.append(text.strip())
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _leads_outside(text: str) -> bool:
    path = _path_in(text)
    return path is not None and not _is_inside(path)


def _path_in(text: str) -> Path | None:
    """The path that a text is, or that it would be found at; None for any other text."""
    text = text.strip()
    if not text or "\n" in text or "\0" in text or len(text) > _LONGEST_PATH:
        return None
    parts = urlsplit(text) if "://" in text else None
    if parts is not None:
        # sqlite:///relative.db and sqlite:////absolute.db
        scheme = parts.scheme.lower().partition("+")[0]
        is_file = scheme in _FILE_SCHEMES
        path = parts.path[1:] if scheme == "sqlite" else f"{parts.netloc}{parts.path}"
        return Path(path) if is_file and path else None
    for scheme in _FILE_SCHEMES:
        text = text.removeprefix(f"{scheme}:")
    return Path(text)


def _is_inside(path: Path) -> bool:
    try:
        place = path.expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        return False
    return any(place.is_relative_to(folder) for folder in _folders())


def _is_hidden(path: Path) -> bool:
    """Whether it lies in what belongs to the servers, to Git or to Python's environment: in a folder with a dot."""
    place = path.expanduser().resolve()
    above = max((folder for folder in _folders() if place.is_relative_to(folder)), key=lambda folder: len(folder.parts))
    return any(part.startswith(".") for part in place.relative_to(above).parts)


def _folders() -> list[Path]:
    """Where a form may point to: the served folder, its outputs where they are a link, what was allowed."""
    allowed = [folder for folder in os.environ.get(ALLOWED_VARIABLE, "").split(os.pathsep) if folder]
    return [Path.cwd().resolve(), Path("outputs").resolve(), *(Path(folder).resolve() for folder in allowed)]


def _outside_text(path: str) -> str:
    return (
        f"`{path[:200]}` lies outside of {Path.cwd()}, the folder that is served, or in a folder of it whose name "
        "begins with a dot. Name a place below it; whoever serves can allow another folder: rlhf serve --allow-folder "
        "FOLDER."
    )
