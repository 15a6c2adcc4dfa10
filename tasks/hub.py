"""The model hub seen from the orchestrator: what a revision is, and its files as plain files on this disk.

SourceError                    a model or dataset cannot be used as configured: what, why, what to do
├── SourceNotFoundError        nothing is there: no such path, repository, revision or file
├── SourceAccessError          it is there, or may be, and this user may not read it
├── HubUnreachableError        the hub did not answer, or answered nonsense
└── UnusableSourceError        it is there and cannot be used: pickled weights, no chat template, no data
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from huggingface_hub import HfApi, constants, get_token, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

RepoKind = Literal["model", "dataset"]
_INFO_TIMEOUT_S = 10.0
_UNAUTHORIZED, _FORBIDDEN, _TOO_MANY = 401, 403, 429


class SourceError(Exception):
    """Base: what, why, and what to do."""


class SourceNotFoundError(SourceError):
    """Nothing is there."""


class SourceAccessError(SourceError):
    """This user may not read it."""


class HubUnreachableError(SourceError):
    """The hub did not answer."""


class UnusableSourceError(SourceError):
    """It is there and cannot be used."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository."""

    path: str
    size_bytes: int


@dataclass(frozen=True)
class HubRevision:
    """A repository at a commit, with all its files."""

    kind: RepoKind
    hub_id: str
    commit: str
    files: tuple[HubFile, ...]

    @property
    def origin(self) -> str:
        """`org/name@commit`."""
        return f"{self.hub_id}@{self.commit}"

    def matching(self, patterns: Iterable[str]) -> tuple[HubFile, ...]:
        """The files that one of the patterns matches; `*` also matches slashes."""
        wanted = tuple(patterns)
        return tuple(file for file in self.files if any(fnmatchcase(file.path, pattern) for pattern in wanted))


def hub_token() -> str | None:
    """The user's hub token: HF_TOKEN, or what `hf auth login` stored; None without."""
    return get_token()


def hub_revision(kind: RepoKind, hub_id: str, *, revision: str, token: str | None) -> HubRevision:
    """What `revision` is now: a commit and its files. One request, nothing is downloaded.

    Raises:
        SourceError: no such repository or revision, no access, or no hub.
    """
    try:
        info = HfApi(endpoint=_endpoint()).repo_info(
            hub_id,
            repo_type=kind,
            revision=revision,
            files_metadata=True,
            timeout=_INFO_TIMEOUT_S,
            token=token or False,
        )
    except Exception as error:  # the hub client raises what its HTTP library raises; every one ends here as a reason
        raise _explained(error, kind, hub_id, revision=revision, token=token) from error
    files = tuple(HubFile(path=item.rfilename, size_bytes=item.size or 0) for item in info.siblings or ())
    if not info.sha:
        raise HubUnreachableError(f"The hub names no commit for {hub_id}@{revision}. Try again, or pin a commit.")
    return HubRevision(kind=kind, hub_id=hub_id, commit=info.sha, files=files)


def read_hub_text(revision: HubRevision, path: str, *, token: str | None) -> str:
    """One small text file of a repository.

    Raises:
        SourceError: it cannot be downloaded.
    """
    try:
        local = hf_hub_download(
            revision.hub_id,
            path,
            repo_type=revision.kind,
            revision=revision.commit,
            cache_dir=hub_cache(),
            endpoint=_endpoint(),
            token=token or False,
        )
    except Exception as error:
        raise _explained(error, revision.kind, revision.hub_id, revision=revision.commit, token=token) from error
    return Path(local).read_text(encoding="utf-8", errors="replace")


def fetch_files(revision: HubRevision, paths: Iterable[str], *, token: str | None) -> Path:
    """A folder that holds exactly these files of the commit, as plain files.

    The hub's own cache holds links into a folder of blobs, which lead nowhere once a snapshot is mounted into a
    container. So the files are linked a second time (hard links, no copy) into a folder of their own.

    Raises:
        SourceError: a file cannot be downloaded, or the disk is full.
    """
    names = sorted(paths)
    folder = flat_folder(revision.kind, revision.hub_id, revision.commit, names)
    if folder.is_dir():
        return folder
    try:
        snapshot = snapshot_download(
            revision.hub_id,
            repo_type=revision.kind,
            revision=revision.commit,
            allow_patterns=names,
            cache_dir=hub_cache(),
            endpoint=_endpoint(),
            token=token or False,
        )
    except Exception as error:
        raise _explained(error, revision.kind, revision.hub_id, revision=revision.commit, token=token) from error
    return _flatten(Path(snapshot), names, folder, revision=revision)


def flat_folder(kind: RepoKind, hub_id: str, commit: str, names: Iterable[str]) -> Path:
    """Where `fetch_files` puts these files; the folder exists only when it is complete."""
    selection = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:12]
    return flat_root(kind, hub_id, commit) / selection


def flat_root(kind: RepoKind, hub_id: str, commit: str) -> Path:
    """Folder of all selections of files that were fetched of a commit."""
    return hub_cache().parent / "rlhf-snapshots" / f"{kind}s--{hub_id.replace('/', '--')}" / commit


def hub_cache() -> Path:
    """The hub client's cache; the environment is read now, not when the client was imported."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser().absolute()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser().absolute() / "hub"
    return Path(constants.HF_HUB_CACHE).absolute()


def _flatten(snapshot: Path, names: list[str], folder: Path, *, revision: HubRevision) -> Path:
    sizes = {file.path: file.size_bytes for file in revision.files}
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        for name in names:
            source, target = (snapshot / name).resolve(), building / name
            if not source.is_file() or source.stat().st_size != sizes[name]:
                found = source.stat().st_size if source.is_file() else 0
                raise HubUnreachableError(
                    f"{revision.origin}: {name} has {sizes[name]} bytes on the hub and {found} here. "
                    f"Remove {source} and start again."
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(source, target)
        building.chmod(0o755)  # mkdtemp's 700 would keep the container's user out
        building.rename(folder)
    except OSError as error:
        if folder.is_dir():  # another process was faster; its folder is as complete as ours
            return folder
        raise UnusableSourceError(f"{revision.origin} cannot be laid out in {folder}: {error}.") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _explained(error: Exception, kind: RepoKind, hub_id: str, *, revision: str, token: str | None) -> SourceError:
    """The same error as what, why and what to do."""
    what, key = f"{kind} {hub_id}@{revision}", "base_model" if kind == "model" else "dataset"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    with_token = "The token in use has no access" if token else "No token is set (HF_TOKEN, or `hf auth login`)"
    if isinstance(error, GatedRepoError) or status == _FORBIDDEN:
        return SourceAccessError(
            f"{what} is gated. {with_token}. Accept its terms on its page on the hub, and set HF_TOKEN to a token of "
            f"that account."
        )
    if isinstance(error, RevisionNotFoundError):
        return SourceNotFoundError(
            f"{what}: the repository exists, the revision does not. Correct {key}.revision to a branch or a commit."
        )
    if isinstance(error, RepositoryNotFoundError) or status == _UNAUTHORIZED:
        return SourceNotFoundError(
            f"{what} does not exist on the hub, or it is private. Correct {key}.hub_id, or set HF_TOKEN to a token that "
            f"may read it. {with_token}."
        )
    if status == _TOO_MANY:
        return HubUnreachableError(f"{what}: the hub answers too many requests (429). Wait, or set HF_TOKEN.")
    if isinstance(error, OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        why = "HF_HUB_OFFLINE is set, so the hub is not asked"
    elif status is not None:
        why = f"the hub answers with status {status}"
    else:
        cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
        why = f"the hub cannot be read ({type(cause).__name__}: {' '.join(str(cause).split())[:200]})"
    return HubUnreachableError(
        f"{what}: {why}. Check the network, proxy and HF_ENDPOINT; or download it elsewhere and set {key} to the local "
        f"path; a pinned commit that was fetched before needs no network."
    )
