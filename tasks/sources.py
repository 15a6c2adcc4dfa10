"""Where base model and dataset come from, and how they become inputs of a stage: a path, a digest and an origin.

A hub id is looked up on the hub and nowhere else, even where a folder of that name lies here; a path is never looked
up on the hub. A branch is resolved to its commit once, and everything after works on the commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from containers.human_text import size
from tasks.data_peek import DataPeek, peek_data
from tasks.hub import HubRevision, RepoKind, fetch_files, flat_folder, hub_revision, hub_token, read_hub_text
from tasks.local_sources import (
    DATA_SUFFIXES,
    data_file_or_folder,
    data_files,
    file_digest,
    folder_digest,
    readable_folder,
)
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
    "probe_pairs",
    "resolve_dataset",
    "resolve_file",
    "resolve_model",
]


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

    What was downloaded is looked into, as `probe_dataset` cannot do before.

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
        _peek_fetched(revision, files, folder, key=key)
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
        num_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        return Probe(f"{folder} ({size(num_bytes)} of safetensors)")
    revision, names = _usable_model(source, token=token)
    num_bytes = sum(file.size_bytes for file in revision.files if file.path in names)
    here = flat_folder("model", revision.hub_id, revision.commit, names).is_dir()
    return Probe(f"{revision.origin} ({size(num_bytes)}{', fetched' if here else ''})", 0 if here else num_bytes)


def probe_dataset(source: DatasetSource, *, token: str | None) -> Probe:
    """That the data files exist and, where they are on this disk, that their first rows can be used; no download.

    Raises:
        SourceError: they are not there, may not be read, or cannot be used.
    """
    parts = _parts(source)
    if source.hub_id is None:
        return Probe("; ".join(probe_pairs(place, key=key).found for _, key, place in parts))
    revision = _revision_of("dataset", source.hub_id, source.revision, token=token)
    texts, missing = [], 0
    for _, key, pattern in parts:
        files = _data_files(revision, pattern, key=key)
        num_bytes = sum(file.size_bytes for file in revision.files if file.path in files)
        facts = [_count_of(files), size(num_bytes)]
        folder = flat_folder("dataset", revision.hub_id, revision.commit, files)
        if folder.is_dir():
            facts.append(f"{_peek_fetched(revision, files, folder, key=key)}, fetched")
        else:
            missing += num_bytes
        texts.append(f"{pattern} ({', '.join(facts)})")
    return Probe(f"{revision.origin}: {', '.join(texts)}", missing)


def probe_file(path: Path | str, *, key: str) -> Probe:
    """That a local file, whatever it holds, is there and can be read.

    Raises:
        SourceError: as `resolve_file` would.
    """
    place = data_file_or_folder(path, key=key)
    return Probe(f"{place} ({size(sum(file.stat().st_size for file in data_files(place)))})")


def probe_pairs(path: Path | str, *, key: str) -> Probe:
    """That a local file, or a folder of files, holds preference data in a schema that is known, by its first rows.

    Raises:
        SourceError: as `resolve_file` would; or it is damaged, no data file, or in an unknown schema.
    """
    place = data_file_or_folder(path, key=key)
    files = data_files(place)
    peek = peek_data({f"{key}: {file}": file for file in files})
    counted = f"{_count_of(files)}, " if place.is_dir() else ""
    return Probe(f"{place} ({counted}{size(sum(file.stat().st_size for file in files))}, {peek})")


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


def _peek_fetched(revision: HubRevision, files: Sequence[str], folder: Path, *, key: str) -> DataPeek:
    return peek_data({f"{key}: {revision.origin} {name}": folder / name for name in files})


def _count_of(files: Sequence[object]) -> str:
    return f"{len(files):,} {'file' if len(files) == 1 else 'files'}"
