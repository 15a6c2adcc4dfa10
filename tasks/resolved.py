"""Content on this disk that stages can read, and how a local file or folder becomes one."""

from dataclasses import dataclass
from pathlib import Path

from tasks.local_sources import data_file_or_folder, file_digest, folder_digest


@dataclass(frozen=True, kw_only=True)
class ResolvedSource:
    """Content on this disk: `digest` names it (`sha256:…`, `hub:<commit>`), `origin` says it to people."""

    path: Path
    digest: str
    origin: str


@dataclass(frozen=True, kw_only=True)
class ResolvedInput(ResolvedSource):
    """The same under the name of a stage's input."""

    name: str


def resolve_file(path: Path | str, *, name: str, key: str | None = None) -> ResolvedInput:
    """A local file, or a folder of data files, as input of that name.

    Args:
        key: where it stands in the configuration; for messages. None: the name.

    Raises:
        SourceError: it is not there, may not be read, or is neither a plain file nor a folder with data.
    """
    place = data_file_or_folder(path, key=key or name)
    digest = folder_digest(place) if place.is_dir() else file_digest(place)
    return ResolvedInput(name=name, path=place, digest=digest, origin=str(place))
