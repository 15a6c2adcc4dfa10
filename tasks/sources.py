"""Where base model and dataset come from, and how they become inputs of a stage: a path, a digest and an origin.

A hub id is looked up on the hub and nowhere else, even where a folder of that name lies here; a path is never looked
up on the hub. A branch is resolved to its commit once, and everything after works on the commit.
"""

from dataclasses import dataclass
from pathlib import Path

from tasks.hub import HubRevision, RepoKind, fetch_files, flat_folder, hub_revision, hub_token, read_hub_text
from tasks.local_sources import DATA_SUFFIXES, data_file_or_folder, file_digest, folder_digest, readable_folder
from tasks.model_files import demand_model_files, model_file_names
from tasks.source_config import DatasetSource, ModelSource
from tasks.source_errors import SourceError, SourceNotFoundError, UnusableSourceError

__all__ = [
    "DatasetSource",
    "ModelSource",
    "Probe",
    "ResolvedInput",
    "ResolvedSource",
    "SourceError",
    "hub_token",
    "probe_dataset",
    "probe_file",
    "probe_model",
    "resolve_dataset",
    "resolve_file",
    "resolve_model",
]

_GIB = 1024**3


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


@dataclass(frozen=True)
class Probe:
    """What was found at a source, without fetching it; `missing_bytes` would still have to be downloaded."""

    found: str
    missing_bytes: int = 0


def resolve_model(source: ModelSource, *, token: str | None) -> ResolvedSource:
    """The model as a folder of plain files: safetensors, configuration and tokenizer, never pickle, never code.

    Raises:
        SourceError: it is not there, may not be read, or cannot be used.
    """
    if source.path is not None:
        folder = readable_folder(source.path, key="base_model.path")
        _demand_local_model(folder)
        return ResolvedSource(path=folder, digest=folder_digest(folder), origin=str(folder))
    revision, names = _usable_model(source, token=token)
    folder = fetch_files(revision, names, token=token)
    return ResolvedSource(path=folder, digest=f"hub:{revision.commit}", origin=revision.origin)


def resolve_dataset(source: DatasetSource, *, token: str | None) -> tuple[ResolvedInput, ...]:
    """`train_data` and, where configured, `validation_data`; each is a file, or a folder where a pattern matched many.

    Raises:
        SourceError: it is not there, may not be read, or cannot be used.
    """
    parts = _parts(source)
    if source.hub_id is None:
        return tuple(resolve_file(place, name=name, key=key) for name, key, place in parts)
    revision = _revision_of("dataset", source.hub_id, source.revision, token=token)
    found = []
    for name, key, pattern in parts:
        files = _data_files(revision, pattern, key=key)
        folder = fetch_files(revision, files, token=token)
        found.append(
            ResolvedInput(
                name=name,
                path=folder / files[0] if len(files) == 1 else folder,
                # Two patterns of one commit are two contents.
                digest=f"hub:{revision.commit}:{pattern}",
                origin=f"{revision.origin} {pattern}",
            )
        )
    return tuple(found)


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


def probe_model(source: ModelSource, *, token: str | None) -> Probe:
    """That the model exists and has what a run needs, in seconds and without its weights.

    Raises:
        SourceError: as `resolve_model` would.
    """
    if source.path is not None:
        folder = readable_folder(source.path, key="base_model.path")
        _demand_local_model(folder)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        return Probe(f"{folder} ({_gib(size)} of safetensors)")
    revision, names = _usable_model(source, token=token)
    size = sum(file.size_bytes for file in revision.files if file.path in names)
    here = flat_folder("model", revision.hub_id, revision.commit, names).is_dir()
    return Probe(f"{revision.origin} ({_gib(size)}{', fetched' if here else ''})", 0 if here else size)


def probe_dataset(source: DatasetSource, *, token: str | None) -> Probe:
    """That the data files exist, without downloading them.

    Raises:
        SourceError: as `resolve_dataset` would.
    """
    parts = _parts(source)
    if source.hub_id is None:
        return Probe("; ".join(probe_file(place, key=key).found for _, key, place in parts))
    revision = _revision_of("dataset", source.hub_id, source.revision, token=token)
    texts, missing = [], 0
    for _, key, pattern in parts:
        files = _data_files(revision, pattern, key=key)
        size = sum(file.size_bytes for file in revision.files if file.path in files)
        missing += 0 if flat_folder("dataset", revision.hub_id, revision.commit, files).is_dir() else size
        texts.append(f"{pattern} ({len(files)} {'file' if len(files) == 1 else 'files'}, {_gib(size)})")
    return Probe(f"{revision.origin}: {', '.join(texts)}", missing)


def probe_file(path: Path | str, *, key: str) -> Probe:
    """That a local file, or a folder of data files, is there and can be read.

    Raises:
        SourceError: as `resolve_file` would.
    """
    place = data_file_or_folder(path, key=key)
    files = [place] if place.is_file() else [file for file in place.rglob("*") if file.name.endswith(DATA_SUFFIXES)]
    return Probe(f"{place} ({_gib(sum(file.stat().st_size for file in files))})")


def _parts(source: DatasetSource) -> tuple[tuple[str, str, str], ...]:
    train = ("train_data", "dataset.train", source.train)
    return (
        (train,) if source.validation is None else (train, ("validation_data", "dataset.validation", source.validation))
    )


def _revision_of(kind: RepoKind, hub_id: str | None, revision: str | None, *, token: str | None) -> HubRevision:
    if hub_id is None or revision is None:
        raise UnusableSourceError(f"The {kind} has neither a path nor a hub_id with a revision.", "Give one of them.")
    return hub_revision(kind, hub_id, revision=revision, token=token)


def _usable_model(source: ModelSource, *, token: str | None) -> tuple[HubRevision, tuple[str, ...]]:
    revision = _revision_of("model", source.hub_id, source.revision, token=token)
    top = tuple(file.path for file in revision.files if "/" not in file.path)
    demand_model_files(top, lambda name: read_hub_text(revision, name, token=token), where=revision.origin)
    return revision, model_file_names(top)


def _demand_local_model(folder: Path) -> None:
    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8", errors="replace")

    present = (path.name for path in folder.iterdir() if path.is_file() and path.stat().st_size)
    demand_model_files(tuple(sorted(present)), read, where=str(folder))


def _data_files(revision: HubRevision, pattern: str, *, key: str) -> tuple[str, ...]:
    matched = [file.path for file in revision.matching((pattern,))]
    files = tuple(sorted(path for path in matched if path.endswith(DATA_SUFFIXES)))
    if files:
        return files
    there = ", ".join(sorted(file.path for file in revision.files if file.path.endswith(DATA_SUFFIXES))[:10])
    raise SourceNotFoundError(
        f"{key}: no data file of {revision.origin} matches {pattern!r}.",
        f"Wanted: {', '.join(DATA_SUFFIXES)}; it holds: {there or 'none of these'}.",
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:,.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / 1024**2:,.1f} MiB"
