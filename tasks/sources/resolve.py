"""Resolve base model and dataset to inputs of a stage: a path, a digest and an origin.

A hub id is looked up only on the hub, even if a folder of that name exists here; a path is never looked up on the hub.
A branch is resolved to its commit once, and everything after works on the commit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from containers.contracts.configs.parts.row_filters import AS_FOUND, RowReading
from containers.data.formats.files import DATA_SUFFIXES
from containers.formatting import size
from tasks.config.sources import DatasetSource, ModelSource, RowSource
from tasks.sources.errors import SourceError, SourceNotFoundError
from tasks.sources.hub import HubRevision, RepoKind, fetch_files, hub_revision, read_hub_text, require_access
from tasks.sources.local import (
    DataPart,
    ResolvedInput,
    ResolvedSource,
    data_file_or_folder,
    data_files,
    data_parts,
    find_reader,
    folder_digest,
    readable_folder,
    resolve_file,
)
from tasks.sources.model_files import model_file_names, require_model_files, require_whole_model
from tasks.sources.peek import PREFERENCES, DataKind, DataPeek, peek_data
from tasks.sources.splits import split_files


@dataclass(frozen=True)
class Probe:
    """What was found at a source, without fetching it; `missing_bytes` are still to be downloaded."""

    found: str
    missing_bytes: int = 0


def resolve_model(source: ModelSource, *, token: str | None, key: str = "base_model") -> ResolvedSource:
    """Resolve the model to a folder of plain files: safetensors, configuration and tokenizer, never pickle or code.

    Args:
        key: its key in the configuration, for messages.

    Raises:
        SourceError: it is not there, may not be read, or cannot be used.
    """
    if source.path is not None:
        folder = _local_model(source.path, key=key)
        return ResolvedSource(path=folder, digest=folder_digest(folder), origin=str(folder))
    revision, names = _usable_model(source, token=token, key=key)
    folder = fetch_files(revision, names, token=token)
    return ResolvedSource(path=folder, digest=f"hub:{revision.commit}", origin=revision.origin)


def resolve_dataset(
    source: DatasetSource, *, token: str | None, kind: DataKind = PREFERENCES
) -> tuple[ResolvedInput, ...]:
    """Inputs `train_data` and, if configured, `validation_data` and `reader`; in a mixture each ends in `_<name>`.

    Data is a file, or a folder if a pattern matched many. The first rows of downloaded data are checked here, as
    `probe_dataset` cannot do that earlier.

    Args:
        kind: what the rows are.

    Raises:
        SourceError: it is not there, may not be read, or cannot be used.
    """
    return tuple(found for name, part in source.parts for found in _resolve_rows(name, part, token=token, kind=kind))


def absent_data(source: DatasetSource) -> Iterator[str]:
    """Yield a sentence for each local data file or folder that is missing: its key, path and reason."""
    for name, rows in source.parts:
        for part in () if rows.hub_id is not None else data_parts(name, rows):
            try:
                data_file_or_folder(part.place, key=part.key)
            except SourceNotFoundError as missing:
                yield missing.problem
            except SourceError:
                continue


def _resolve_rows(name: str, source: RowSource, *, token: str | None, kind: DataKind) -> Iterator[ResolvedInput]:
    reader, parts = find_reader(name, source, section=kind.section), data_parts(name, source, section=kind.section)
    if source.hub_id is None:
        for part in parts:
            yield resolve_file(part.place, name=part.input_name, key=part.key)
    else:
        revision = _revision_of("dataset", source, token=token)
        for part in parts:
            files = files_on_hub(revision, source, part, token=token)
            folder = fetch_files(revision, files, token=token)
            if reader is None:
                _peek_fetched(revision, files, folder, key=part.key, reading=source.reading, kind=kind)
            yield ResolvedInput(
                name=part.input_name,
                path=folder / files[0] if len(files) == 1 else folder,
                # Two patterns of one commit have different content.
                digest=f"hub:{revision.commit}:{part.place}",
                origin=f"{revision.origin} {part.place}",
            )
    if reader is not None:
        yield reader


def probe_model(source: ModelSource, *, token: str | None, key: str = "base_model") -> Probe:
    """Check that the model exists and has what a run needs, in seconds and without its weights.

    Raises:
        SourceError: as `resolve_model` would.
    """
    if source.path is not None:
        folder = _local_model(source.path, key=key)
        num_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        return Probe(f"{folder} ({size(num_bytes)} of safetensors)")
    revision, names = _usable_model(source, token=token, key=key)
    return probe_of_hub(revision, names, shown=revision.origin, token=token)


def probe_of_hub(revision: HubRevision, names: Sequence[str], *, shown: str, token: str | None) -> Probe:
    """What is known of these files of a repository without fetching them; `shown` is what users call them.

    Raises:
        SourceError: they are not here, and may not be downloaded.
    """
    here, num_bytes = revision.folder_of(names).is_dir(), revision.size_bytes(names)
    if not here:
        require_access(revision, names[0], token=token)
    return Probe(f"{shown} ({size(num_bytes)}{', fetched' if here else ''})", 0 if here else num_bytes)


def probe_dataset(source: DatasetSource, *, token: str | None, kind: DataKind = PREFERENCES) -> Probe:
    """Check that the data files exist and, if on this disk, that their first rows can be used. No download.

    Raises:
        SourceError: they are not there, may not be read, or cannot be used.
    """
    probes = [_probe_rows(name, part, token=token, kind=kind) for name, part in source.parts]
    return Probe("; ".join(probe.found for probe in probes), sum(probe.missing_bytes for probe in probes))


def _probe_rows(name: str, source: RowSource, *, token: str | None, kind: DataKind) -> Probe:
    reader, parts = find_reader(name, source, section=kind.section), data_parts(name, source, section=kind.section)
    read_by = "" if reader is None else f", read by {reader.path.name}"
    if source.hub_id is None:
        probe = partial(probe_rows, reading=source.reading, kind=kind) if reader is None else probe_file
        return Probe("; ".join(probe(part.place, key=part.key).found + read_by for part in parts))
    revision = _revision_of("dataset", source, token=token)
    texts, missing = [], 0
    for part in parts:
        files = files_on_hub(revision, source, part, token=token)
        num_bytes, folder = revision.size_bytes(files), revision.folder_of(files)
        facts = [_count_of(files), size(num_bytes)]
        if not folder.is_dir():
            require_access(revision, files[0], token=token)
            missing += num_bytes
        elif reader is None:
            found = _peek_fetched(revision, files, folder, key=part.key, reading=source.reading, kind=kind)
            facts.append(f"{found}, fetched")
        else:
            facts.append("fetched")
        texts.append(f"{part.place} ({', '.join(facts)}){read_by}")
    return Probe(f"{revision.origin}: {', '.join(texts)}", missing)


def probe_file(path: Path | str, *, key: str) -> Probe:
    """Check that a local file exists and can be read, whatever it holds.

    Raises:
        SourceError: as `resolve_file` would.
    """
    place = data_file_or_folder(path, key=key)
    return Probe(f"{place} ({size(sum(file.stat().st_size for file in data_files(place)))})")


def probe_rows(path: Path | str, *, key: str, reading: RowReading = AS_FOUND, kind: DataKind = PREFERENCES) -> Probe:
    """Check by its first rows that a local file or folder holds data of this kind in a known schema.

    Raises:
        SourceError: as `resolve_file` would; or it is damaged, no data file, or in an unknown schema.
    """
    place = data_file_or_folder(path, key=key)
    files = data_files(place)
    peek = peek_data({f"{key}: {file}": file for file in files}, reading, kind=kind)
    counted = f"{_count_of(files)}, " if place.is_dir() else ""
    return Probe(f"{place} ({counted}{size(sum(file.stat().st_size for file in files))}, {peek})")


def _revision_of(kind: RepoKind, source: ModelSource | RowSource, *, token: str | None) -> HubRevision:
    """The revision that a source names; both its parts are given, or the configuration was refused."""
    return hub_revision(kind, source.hub_id or "", revision=source.revision or "", token=token)


def _usable_model(source: ModelSource, *, token: str | None, key: str) -> tuple[HubRevision, tuple[str, ...]]:
    revision = _revision_of("model", source, token=token)
    top = tuple(file.path for file in revision.files if "/" not in file.path)
    require_model_files(top, lambda name: read_hub_text(revision, name, token=token), where=revision.origin, key=key)
    return revision, model_file_names(top)


def _local_model(path: str, *, key: str) -> Path:
    """The folder of a usable model on this disk."""
    folder = readable_folder(path, key=f"{key}.path")

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8", errors="replace")

    present = tuple(sorted(path.name for path in folder.iterdir() if path.is_file() and path.stat().st_size))
    require_model_files(present, read, where=str(folder), key=key)
    require_whole_model(folder, present)
    return folder


def files_on_hub(revision: HubRevision, source: RowSource, part: DataPart, *, token: str | None) -> tuple[str, ...]:
    """The files of a part of a source in its repository, sorted.

    Raises:
        SourceError: there is none; or the repository's README, which lists its splits, cannot be read.
    """
    if part.split is None:
        return matching_data_files(revision, part.place, key=part.key, any_ending=source.reader is not None)
    return split_files(
        revision,
        subset=source.subset,
        split=part.split,
        key=part.key,
        read=lambda name: read_hub_text(revision, name, token=token),
    )


def matching_data_files(revision: HubRevision, pattern: str, *, key: str, any_ending: bool = False) -> tuple[str, ...]:
    """The data files of a repository that match, sorted; `*` also matches slashes.

    Args:
        any_ending: take files of other types too.

    Raises:
        SourceNotFoundError: there is none; the message lists the data files that there are.
    """
    matched = [file.path for file in revision.files if fnmatchcase(file.path, pattern)]
    files = tuple(sorted(path for path in matched if any_ending or path.endswith(DATA_SUFFIXES)))
    if files:
        return files
    there = ", ".join(sorted(file.path for file in revision.files if file.path.endswith(DATA_SUFFIXES))[:10])
    raise SourceNotFoundError(
        f"{key}: no data file of {revision.origin} matches {pattern!r}.",
        f"Wanted: {', '.join(DATA_SUFFIXES)}; it holds: {there or 'none of these'}.",
    )


def _peek_fetched(
    revision: HubRevision, files: Sequence[str], folder: Path, *, key: str, reading: RowReading, kind: DataKind
) -> DataPeek:
    return peek_data({f"{key}: {revision.origin} {name}": folder / name for name in files}, reading, kind=kind)


def _count_of(files: Sequence[object]) -> str:
    return f"{len(files):,} {'file' if len(files) == 1 else 'files'}"
