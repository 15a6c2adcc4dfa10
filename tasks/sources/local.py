"""Resolve local files and folders that a configuration names, also a custom reader: check and digest their content."""

import ast
import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from containers.contracts.configs.parts.row_filters import SplitName
from containers.contracts.digests import UnsafeFileError, content_digest, file_sha256, regular_files
from containers.contracts.manifest import FileEntry
from containers.contracts.names import DEMO_DATA_FOLDER
from containers.data.formats.custom_reader import READER_FUNCTION
from containers.data.formats.files import DATA_SUFFIXES
from tasks.config.sources import RowSource
from tasks.sources.errors import SourceAccessError, SourceNotFoundError, UnusableSourceError

_MAX_BYTES = 1024**2


@dataclass(frozen=True, kw_only=True)
class ResolvedSource:
    """Content on this disk: `digest` identifies it (`sha256:…`, `hub:<commit>`), `origin` describes it to users."""

    path: Path
    digest: str
    origin: str


@dataclass(frozen=True, kw_only=True)
class ResolvedInput(ResolvedSource):
    """A `ResolvedSource` with the name of a stage's input."""

    name: str


def resolve_file(path: Path | str, *, name: str, key: str | None = None) -> ResolvedInput:
    """Resolve a local file, or a folder of data files, to the input `name`.

    Args:
        key: its key in the configuration, for messages; None: the name.

    Raises:
        SourceError: it is missing or unreadable, or neither a plain file nor a folder with data.
    """
    place = data_file_or_folder(path, key=key or name)
    digest = folder_digest(place) if place.is_dir() else f"sha256:{_sha256(place)}"
    return ResolvedInput(name=name, path=place, digest=digest, origin=str(place))


def data_file_or_folder(path: Path | str, *, key: str) -> Path:
    """The absolute path of a plain, non-empty file, or of a folder that holds at least one data file.

    Raises:
        SourceError: it is neither; the message has the absolute path and the configuration key.
    """
    place = _existing(path, key=key)
    if place.is_dir():
        folder = readable_folder(place, key=key)
        if not data_files(folder):
            found = ", ".join(sorted(file.name for file in folder.iterdir())[:10]) or "nothing"
            raise UnusableSourceError(
                f"{key}: {folder} holds no data file.",
                f"Wanted: {', '.join(DATA_SUFFIXES)}; found: {found}.",
            )
        return folder
    facts = place.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise UnusableSourceError(f"{key}: {place} is a device, pipe or socket.", "Name a plain file.")
    if facts.st_size == 0:
        raise UnusableSourceError(f"{key}: {place} is empty (0 bytes).", "Make or download it again.")
    if not os.access(place, os.R_OK):
        raise SourceAccessError(f"{key}: {place} cannot be read by user {os.getuid()}.", "Change its mode or owner.")
    return place


def readable_folder(path: Path | str, *, key: str) -> Path:
    """The absolute path of a folder of plain files that can be listed.

    Raises:
        SourceError: it is none, or holds a link: links break once the folder is mounted.
    """
    place = _existing(path, key=key)
    if not place.is_dir():
        raise UnusableSourceError(f"{key}: {place} is a file; a folder is needed.", "Name the folder that it is in.")
    if not os.access(place, os.R_OK | os.X_OK):
        raise SourceAccessError(f"{key}: {place} cannot be listed by user {os.getuid()}.", "Change its mode or owner.")
    _files(place)
    return place


def data_files(place: Path) -> tuple[Path, ...]:
    """The file itself, or the data files below the folder that are not hidden, sorted by path.

    Raises:
        SourceError: the folder holds a link, or cannot be read.
    """
    if place.is_file():
        return (place,)
    return tuple(file for file in _files(place) if file.name.endswith(DATA_SUFFIXES))


def folder_digest(folder: Path) -> str:
    """`sha256:…` over paths, sizes and contents of all files below that are not hidden."""
    return content_digest(
        FileEntry(path=path.relative_to(folder).as_posix(), size_bytes=path.stat().st_size, sha256=_sha256(path))
        for path in _files(folder)
    )


def _existing(path: Path | str, *, key: str) -> Path:
    place = Path(path).expanduser().absolute()
    try:
        return place.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle; ValueError: a null byte
        advice = "Correct the path."
        if set("*?[") & set(str(path)):
            advice += " Patterns work inside hub repositories only: name a folder."
        if place.parent == Path(DEMO_DATA_FOLDER).absolute():
            advice = f"`rlhf demo-data --folder {DEMO_DATA_FOLDER}` writes it."
        why = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be opened ({error})"
        raise SourceNotFoundError(f"{key}: {place} {why}.", advice) from error


def _files(folder: Path) -> list[Path]:
    """All plain files below that are not hidden: .git and download caches are not content."""
    try:
        files = list(regular_files(folder))
    except UnsafeFileError as error:
        raise UnusableSourceError(
            f"{folder} cannot be mounted into a stage: {error}",
            f"Copy it without links: `cp -rL {folder} <new folder>`.",
        ) from error
    except OSError as error:
        raise SourceAccessError(f"{folder} cannot be read: {error}.", "Change its mode or owner.") from error
    return [file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts)]


def _sha256(path: Path) -> str:
    facts = path.stat()
    return _sha256_of_version(path, facts.st_ino, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=4096)
def _sha256_of_version(path: Path, _inode: int, _size: int, _mtime_ns: int) -> str:
    """Digest of one version of a file, cached: hashing a large model takes minutes, and several stages need it."""
    try:
        return file_sha256(path)
    except (UnsafeFileError, OSError) as error:
        raise SourceAccessError(f"{path} cannot be read: {error}.", "Change its mode or owner.") from error


@dataclass(frozen=True)
class DataPart:
    """One place of a source: its input's name, its key in the configuration, and its path, pattern or split.

    Attributes:
        split: its name without a slice, where the source names a split and no files.
    """

    input_name: str
    key: str
    place: str
    split: str | None = None


def data_parts(name: str, source: RowSource, *, section: str = "dataset") -> tuple[DataPart, ...]:
    """Training rows and, if configured, validation rows.

    Args:
        name: of the source in its mixture; empty without a mixture.
        section: of the run that has the source, for messages.
    """
    ending, section = (f"_{name}", f"{section}.mixture {name}: ") if name else ("", f"{section}.")
    kinds = (
        ("train", source.train, "split", source.split),
        ("validation", source.validation, "validation_split", source.validation_split),
    )
    parts = []
    for kind, place, key, split in kinds:
        if split is not None:
            named = SplitName.parsed(split).name
            words = f"subset {source.subset}, split {named}" if source.subset else f"split {named}"
            parts.append(DataPart(f"{kind}_data{ending}", f"{section}{key}", words, named))
        elif place:
            parts.append(DataPart(f"{kind}_data{ending}", f"{section}{kind}", place))
    return tuple(parts)


def find_reader(name: str, source: RowSource, *, section: str = "dataset") -> ResolvedInput | None:
    """Resolve the reader to an input of the stage; None if the source names none. It is parsed, never run.

    Args:
        name: of the source in its mixture; empty without a mixture.
        section: of the run that has the source, for messages.

    Raises:
        SourceError: it is missing, is no Python, or has no function `READER_FUNCTION`.
    """
    if source.reader is None:
        return None
    key = f"{section}.mixture {name}: reader" if name else f"{section}.reader"
    found = resolve_file(source.reader, name=f"reader_{name}" if name else "reader", key=key)
    if found.path.is_dir() or found.path.stat().st_size > _MAX_BYTES:
        raise UnusableSourceError(f"{key}: {found.path} is no Python file.", "Name a file that ends in .py.")
    try:
        tree = ast.parse(found.path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UnusableSourceError(f"{key}: {found.path} is no Python: {error}.", "Correct the file.") from error
    if not any(isinstance(item, ast.FunctionDef) and item.name == READER_FUNCTION for item in tree.body):
        raise UnusableSourceError(
            f"{key}: {found.path} has no function {READER_FUNCTION}(path).", "Write one that yields a dict per row."
        )
    return found
