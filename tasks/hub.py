"""The model hub seen from the orchestrator: what a revision is, and its files as plain files on this disk."""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
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

from containers.digests import write_atomically
from containers.human_text import size as human_size
from tasks.display import current_display
from tasks.source_errors import (
    HubUnreachableError,
    SourceAccessError,
    SourceError,
    SourceNotFoundError,
    UnusableSourceError,
)

RepoKind = Literal["model", "dataset"]
_COMMIT = re.compile(r"[0-9a-f]{40}")
_INFO_TIMEOUT_S = 10.0
_LISTING_FILE = "files.json"
_UNAUTHORIZED, _FORBIDDEN, _TOO_MANY, _SERVER_ERROR = 401, 403, 429, 500


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
    """What `revision` is now: a commit and its files. One request; none for a commit that was fetched before.

    Raises:
        SourceError: no such repository or revision, no access, or no hub.
    """
    if _COMMIT.fullmatch(revision) and (known := _known_revision(kind, hub_id, revision)):
        return known
    api = HfApi(endpoint=_endpoint(), token=token or False)
    ask = api.model_info if kind == "model" else api.dataset_info
    try:
        info = ask(hub_id, revision=revision, files_metadata=True, timeout=_INFO_TIMEOUT_S)
    except Exception as error:  # the hub client raises what its HTTP library raises; every one ends here as a reason
        raise _explained(error, kind, hub_id, revision=revision, token=token) from error
    files = tuple(HubFile(path=item.rfilename, size_bytes=item.size or 0) for item in info.siblings or ())
    if not info.sha:
        raise HubUnreachableError(f"The hub names no commit for {hub_id}@{revision}.", "Try again, or pin a commit.")
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
    size_bytes = sum(file.size_bytes for file in revision.files if file.path in names)
    current_display().say(f"Fetching {revision.origin}: {len(names)} files, {human_size(size_bytes)}")
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
    _flatten(Path(snapshot), names, folder, revision=revision)
    write_atomically(folder.parent / _LISTING_FILE, json.dumps(asdict(revision)))
    return folder


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


def _known_revision(kind: RepoKind, hub_id: str, commit: str) -> HubRevision | None:
    """The listing of a commit, which never changes, from when it was fetched."""
    try:
        value = json.loads((flat_root(kind, hub_id, commit) / _LISTING_FILE).read_bytes())
        return HubRevision(**{**value, "files": tuple(HubFile(**file) for file in value["files"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _flatten(snapshot: Path, names: list[str], folder: Path, *, revision: HubRevision) -> None:
    sizes = {file.path: file.size_bytes for file in revision.files}
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        for name in names:
            source, target = (snapshot / name).resolve(), building / name
            if not source.is_file() or source.stat().st_size != sizes[name]:
                found = source.stat().st_size if source.is_file() else 0
                raise HubUnreachableError(
                    f"{revision.origin}: {name} has {sizes[name]} bytes on the hub and {found} here.",
                    f"Remove {source} and start again.",
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(source, target)
        building.chmod(0o755)  # mkdtemp's 700 would keep the container's user out
        building.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # otherwise another process was faster; its folder is as complete as ours
            raise UnusableSourceError(
                f"{revision.origin} cannot be laid out in {folder}: {error}.",
                "Free space, or set HF_HOME to a folder on another disk.",
            ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


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
    if isinstance(error, GatedRepoError):
        return SourceAccessError(
            f"{what} is gated. {with_token}.",
            "Accept its terms on its page on the hub, and set HF_TOKEN to a token of that account.",
        )
    if status == _FORBIDDEN:
        return SourceAccessError(
            f"{what}: access is forbidden (403), by the hub or by a proxy on the way. {with_token}.",
            "Open the address in a browser on this machine to see who says so; set HF_TOKEN, or ask for access.",
        )
    if isinstance(error, RevisionNotFoundError):
        return SourceNotFoundError(
            f"{what}: the repository exists, the revision does not.",
            f"Correct {key}.revision to a branch or a commit.",
        )
    if status == _UNAUTHORIZED and token and not isinstance(error, RepositoryNotFoundError):
        return SourceAccessError(
            f"{what}: the hub refuses the token in use; it is expired or wrong.",
            "Set HF_TOKEN to a valid one, or leave it out: a public repository wants none.",
        )
    if isinstance(error, RepositoryNotFoundError) or status == _UNAUTHORIZED:
        return SourceNotFoundError(
            f"{what} does not exist on the hub, or it is private. {with_token}.",
            f"Correct {key}.hub_id, or set HF_TOKEN to a token that may read it.",
        )
    if status == _TOO_MANY:
        return HubUnreachableError(f"{what}: the hub answers too many requests (429).", "Wait, or set HF_TOKEN.")
    if isinstance(error, OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        why = "HF_HUB_OFFLINE is set, so the hub is not asked"
    elif status is not None:
        why = f"the hub answers with status {status}"
    else:
        cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
        why = f"the hub cannot be read ({type(cause).__name__}: {' '.join(str(cause).split())[:200]})"
    return HubUnreachableError(f"{what}: {why}.", _without_hub(kind, hub_id, try_later=(status or 0) >= _SERVER_ERROR))


def _without_hub(kind: RepoKind, hub_id: str, *, try_later: bool) -> str:
    """What to do while the hub cannot be had, as one types it."""
    first = "Try again later" if try_later else "Check the network, proxy and HF_ENDPOINT, and start again"
    local = (
        "`--set 'base_model={path: FOLDER}'`"
        if kind == "model"
        else "`--set 'dataset={train: FILE, validation: FILE}'`"
    )
    fetched = sorted(path.name for path in flat_root(kind, hub_id, "x").parent.glob("*") if path.is_dir())
    known = f" Fetched before, so usable as revision without a network: {', '.join(fetched[-3:])}." if fetched else ""
    return f"{first}; or download it elsewhere and give {local}.{known}"
