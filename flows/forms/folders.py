"""Folders to write and files to read that a form may name: below the served folder or an allowed folder.

The user of a form has no shell on the machine, but a run can read what the serving user can. The serving user writes
the run configurations in the served folder, so these may name files to read anywhere.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tasks.config.errors import ConfigError, InvalidConfigError, Mistake
from tasks.config.run import RunConfig
from tasks.config.yaml_reader import read_yaml_value

# Set by `rlhf serve --allow-folder`; the processes of the runs inherit it.
ALLOWED_VARIABLE = "RLHF_ALLOWED_FOLDERS"
_FILE_SCHEMES = ("file", "sqlite")
# Characters of one value, as in the form's schema. Each part of a path costs a look at the disk.
_LONGEST_TEXT = 20_000


def require_inside(values: Mapping[str, Any], *, lines: str, yaml_fields: Collection[str] = ()) -> None:
    """Refuse values of a form that name a place outside, before anything is read there.

    Args:
        values: the filled-in values by field.
        lines: the field that holds `section.key=value`.
        yaml_fields: fields that hold lines of YAML.

    Raises:
        InvalidConfigError: with every one of them.
    """
    given = {**values, lines: _values(line.partition("=")[2] for line in texts_of(values.get(lines, ()), field=lines))}
    given |= {name: _values(texts_of(values[name], field=name)) for name in yaml_fields if name in values}
    mistakes = [
        Mistake(field, problem)
        for field, value in given.items()
        for text in _texts(value)
        if (problem := _problem(text)) is not None
    ]
    if mistakes:
        raise InvalidConfigError("The form", mistakes)


def texts_of(value: Any, *, field: str) -> list[str]:
    """The lines of a field, without blanks around them.

    Raises:
        InvalidConfigError: it is no list of texts. A user can bypass the server's own check.
    """
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        return [line.strip() for line in value]
    shown = f"`{str(value)[:200]}` found, wanted a list of lines `section.key=value`, each a text."
    raise InvalidConfigError("The form", [Mistake(field, shown)])


def require_outputs_inside(config: RunConfig) -> None:
    """Refuse a run whose folders are outside, whether the form or its run configuration names them.

    Raises:
        InvalidConfigError: with every one of them.
    """
    uri = config.tracking.mlflow_uri or ""
    places = [("run.output_dir", config.output_dir), ("run.store_dir", config.store_dir)]
    places += [("tracking.mlflow_uri", path) for path in (_paths_of_address(uri) if "://" in uri else [Path(uri)])]
    outside = {key: path for key, path in places if not _is_inside(path) or _is_hidden(path)}
    mistakes = [Mistake(key, _outside_text(str(path))) for key, path in outside.items()]
    if mistakes:
        raise InvalidConfigError("The form", mistakes)


def _values(texts: Iterable[str]) -> list[Any]:
    found: list[Any] = []
    for text in texts:
        try:
            found.append(read_yaml_value(text, shown=""))
        except ConfigError:  # reported by the check of the run, which reads no file for it
            found.append(text)
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


def _problem(text: str) -> str | None:
    """Why a form may not hold the text; None if it may.

    A run may open any text as a file. Prose, a hub id and a hub's address are paths below this folder.
    """
    if len(text) > _LONGEST_TEXT:
        return f"`{text[:60]}…` has {len(text):,} characters, more than {_LONGEST_TEXT:,}. Shorten it."
    paths = (Path(text), Path(text.strip()), *_paths_of_address(text.strip()))
    if all(_is_inside(path) and not _is_private(path) for path in paths):
        return None
    return _outside_text(text)


def _paths_of_address(text: str) -> list[Path]:
    """All paths that a file address may mean, with and without escapes; none for any other text."""
    scheme, colon, rest = text.partition(":")
    kind = scheme.strip().lower().partition("+")[0]
    if not colon or kind not in _FILE_SCHEMES:
        return []
    if kind == "sqlite":
        # sqlite:///relative.db and sqlite:////absolute.db; after the slashes SQLite takes file:path as well
        rest = rest.removeprefix("//").removeprefix("/")
        found = [rest]
        rest = rest.partition(":")[2] if rest.lower().startswith("file:") else ""
    else:
        found = []
    if rest.startswith("//"):
        # file:///absolute and file://host/absolute; some programs take the host for the first folder
        _, slash, behind = rest[2:].partition("/")
        found += [rest[2:], slash + behind]
    else:
        found.append(rest)
    found += [re.split(r"[?#]", path, maxsplit=1)[0] for path in found]
    found += [unquote(path) for path in found]
    return [Path(path) for path in dict.fromkeys(found) if path]


def _is_inside(path: Path) -> bool:
    try:
        place = path.expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        return False
    return any(place.is_relative_to(folder) for folder in _folders())


def _is_hidden(path: Path) -> bool:
    """Whether it is below a name with a leading dot: state of the servers, of Git or of Python's environment.

    The hub's folder counts too: it holds the hub's tokens, and files that other people wrote.
    """
    place, above = _place_and_folder(path)
    hub = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser().resolve()
    is_of_the_hub = place.is_relative_to(hub) and not above.is_relative_to(hub)
    return is_of_the_hub or any(part.startswith(".") for part in place.relative_to(above).parts)


def _is_private(path: Path) -> bool:
    """As `_is_hidden`, but only for existing paths: a text of a form may hold a dot and be no path."""
    if not _is_hidden(path):
        return False
    place, above = _place_and_folder(path)
    parts = place.relative_to(above).parts
    number = next((number for number, part in enumerate(parts) if part.startswith(".")), len(parts) - 1)
    return os.path.lexists(above.joinpath(*parts[: number + 1]))


def _place_and_folder(path: Path) -> tuple[Path, Path]:
    """The resolved path, and the innermost allowed folder above it."""
    place = path.expanduser().resolve()
    above = (folder for folder in _folders() if place.is_relative_to(folder))
    return place, max(above, key=lambda folder: len(folder.parts))


def _folders() -> list[Path]:
    """Folders that a form may use: the served one, its outputs (which may be a link), the allowed ones."""
    allowed = [folder for folder in os.environ.get(ALLOWED_VARIABLE, "").split(os.pathsep) if folder]
    return [Path.cwd().resolve(), Path("outputs").resolve(), *(Path(folder).resolve() for folder in allowed)]


def _outside_text(path: str) -> str:
    return (
        f"`{path[:200]}` lies outside of {Path.cwd()}, the folder that is served, behind a name in it that begins "
        "with a dot, or in the hub's own folder. Name a place below it; the serving user can allow another folder: "
        "rlhf serve --allow-folder FOLDER."
    )
