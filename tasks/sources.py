"""Where base model and dataset come from, and how they become inputs of a stage: a path, a digest and an origin.

A hub id is looked up on the hub and nowhere else, even where a folder of that name lies here; a path is never looked
up on the hub. A branch is resolved to its commit once, and everything after works on the commit.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from containers.contracts.base import Frozen
from tasks.hub import (
    HubRevision,
    RepoKind,
    SourceError,
    SourceNotFoundError,
    UnusableSourceError,
    fetch_files,
    flat_folder,
    hub_revision,
    hub_token,
    read_hub_text,
)
from tasks.local_sources import DATA_SUFFIXES, data_file_or_folder, file_digest, folder_digest, readable_folder
from tasks.model_files import demand_model_files, model_file_names

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

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"{_NAME}/{_NAME}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_GIB = 1024**3


class ModelSource(Frozen):
    """A causal language model with tokenizer and chat template: on the hub, or in a local folder."""

    hub_id: str | None = Field(None, description="`org/name` on the hub, for example `Qwen/Qwen3-8B`")
    revision: str | None = Field(
        None, description="Commit (best: the run can be repeated) or branch, resolved to its commit; with hub_id only"
    )
    path: str | None = Field(None, min_length=1, description="Local folder with config.json, safetensors and tokenizer")

    @field_validator("hub_id")
    @classmethod
    def _hub_id(cls, value: str | None) -> str | None:
        return _checked_hub_id(value)

    @field_validator("revision")
    @classmethod
    def _revision(cls, value: str | None) -> str | None:
        return _checked_revision(value)

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.hub_id is not None and self.path is not None:
            raise ValueError("both hub_id and path are given. Keep exactly one of them.")
        if self.hub_id is None and self.path is None:
            raise ValueError("neither hub_id nor path is given. Give `hub_id` and `revision`, or `path`.")
        _check_pairing(self.hub_id, self.revision)
        return self


class DatasetSource(Frozen):
    """Preference rows as jsonl, jsonl.gz or parquet: in a dataset repository on the hub, or local."""

    hub_id: str | None = Field(None, description="`org/name` on the hub, for example `nvidia/HelpSteer3`; null: local")
    revision: str | None = Field(
        None, description="Commit (best: the run can be repeated) or branch, resolved to its commit; with hub_id only"
    )
    train: str = Field(
        min_length=1,
        max_length=1024,
        description="With hub_id: a file or pattern in the repository (`preference/train.jsonl.gz`); else a local file "
        "or folder",
    )
    validation: str | None = Field(
        None, min_length=1, max_length=1024, description="As `train`; null: a share of the training prompts is held out"
    )

    @field_validator("hub_id")
    @classmethod
    def _hub_id(cls, value: str | None) -> str | None:
        return _checked_hub_id(value)

    @field_validator("revision")
    @classmethod
    def _revision(cls, value: str | None) -> str | None:
        return _checked_revision(value)

    @model_validator(mode="after")
    def _patterns_stay_inside(self) -> Self:
        _check_pairing(self.hub_id, self.revision)
        for key, pattern in (("train", self.train), ("validation", self.validation)):
            if self.hub_id is None or pattern is None:
                continue
            if pattern.startswith(("/", "-", "~")) or ".." in pattern.split("/") or "\\" in pattern:
                raise ValueError(
                    f"{key} {pattern!r} is no path inside the repository {self.hub_id}. Give one relative to its root, "
                    f"such as `preference/train.jsonl.gz`; for a local file leave hub_id out."
                )
        return self


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
    revision = _revision_of("model", source.hub_id, source.revision, token=token)
    names = model_file_names(file.path for file in revision.files)
    demand_model_files(names, lambda name: read_hub_text(revision, name, token=token), where=revision.origin)
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
    revision = _revision_of("model", source.hub_id, source.revision, token=token)
    names = model_file_names(file.path for file in revision.files)
    demand_model_files(names, lambda name: read_hub_text(revision, name, token=token), where=revision.origin)
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
        raise UnusableSourceError(f"The {kind} has neither a path nor a hub_id with a revision.")
    return hub_revision(kind, hub_id, revision=revision, token=token)


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
        f"{key}: no data file of {revision.origin} matches {pattern!r}. Wanted: {', '.join(DATA_SUFFIXES)}; "
        f"it holds: {there or 'none of these'}."
    )


def _checked_hub_id(value: str | None) -> str | None:
    if value is None:
        return None
    if not _HUB_ID.fullmatch(value) or ".." in value or "--" in value or value.endswith(".git"):
        raise ValueError(
            f"{value!r} is no hub id. It must be `org/name` of letters, digits, `-`, `_` and `.`, for example "
            f"`Qwen/Qwen3-8B`; a local folder or file goes without hub_id."
        )
    return value


def _checked_revision(value: str | None) -> str | None:
    if value is not None and (not _REVISION.fullmatch(value) or ".." in value or value.endswith("/")):
        raise ValueError(
            f"{value!r} is no revision. Give a commit of 40 hexadecimal digits (best), or a branch or tag."
        )
    return value


def _check_pairing(hub_id: str | None, revision: str | None) -> None:
    if hub_id is not None and revision is None:
        raise ValueError(
            f"hub_id {hub_id} needs a `revision`: a commit of 40 hexadecimal digits (best), or a branch such as `main`, "
            f"which is resolved to its commit when the run starts."
        )
    if hub_id is None and revision is not None:
        raise ValueError(f"revision {revision!r} belongs to a hub_id, and none is given. Leave it out.")


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:,.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / 1024**2:,.1f} MiB"
