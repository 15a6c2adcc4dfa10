"""Access to the model hub: resolve revisions to commits, and fetch their files as plain files on this disk."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from huggingface_hub import (
    HfApi,
    constants,
    get_hf_file_metadata,
    get_token,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
    try_to_load_from_cache,
)

from containers.contracts.digests import write_atomically
from containers.formatting import size
from tasks.config.logins import origin, without_login
from tasks.config.sources import COMMIT
from tasks.display import current_display
from tasks.sources.errors import HubUnreachableError, UnusableSourceError
from tasks.sources.hub_errors import RepoKind as RepoKind
from tasks.sources.hub_errors import explained, sendable, tellable
from tasks.sources.secrets import HUB_TOKEN_BLOCK, stored_secret

logger = logging.getLogger(__name__)

_INFO_TIMEOUT_S = 10.0
_LISTING_FILE = "files.json"
# Names the hub that stored tokens are for, if it is another one.
TOKEN_ENDPOINT = "RLHF_HUB_TOKEN_ENDPOINT"  # noqa: S105 - the name of a variable
HUB = "https://huggingface.co"
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


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

    def folder_of(self, names: Iterable[str]) -> Path:
        """Folder where `fetch_files` puts these files; it exists only when it is complete."""
        selection = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:12]
        return flat_root(self.kind, self.hub_id, self.commit) / selection

    def size_bytes(self, names: Collection[str]) -> int:
        """Bytes of these files."""
        return sum(file.size_bytes for file in self.files if file.path in names)


def hub_token() -> str | None:
    """Return HF_TOKEN, else Prefect's Secret block `rlhf-hub-token`, else what `hf auth login` stored, else None.

    HF_TOKEN is for the hub that the same environment names. The others are for huggingface.co, or for the hub that
    RLHF_HUB_TOKEN_ENDPOINT names, and are not sent to another HF_ENDPOINT.
    """
    if any(os.environ.get(name) for name in _TOKEN_VARIABLES):
        return get_token()
    endpoint, owner = hub_endpoint(), os.environ.get(TOKEN_ENDPOINT) or HUB
    if endpoint is not None and origin(endpoint) != origin(owner):
        logger.info("Stored hub tokens are for %s and are not sent to HF_ENDPOINT %s.", owner, without_login(endpoint))
        return None
    return stored_secret(HUB_TOKEN_BLOCK) or get_token()


def hub_revision(kind: RepoKind, hub_id: str, *, revision: str, token: str | None) -> HubRevision:
    """Resolve `revision` to a commit and its files. One request; none for a commit that was fetched before.

    Raises:
        SourceError: no such repository or revision, no access, or no hub.
    """
    if COMMIT.fullmatch(revision) and (known := _known_revision(kind, hub_id, revision)):
        return known
    api = HfApi(endpoint=hub_endpoint(), token=sendable(token))
    ask = api.model_info if kind == "model" else api.dataset_info
    with _errors_explained(kind, hub_id, revision, token):
        info = ask(hub_id, revision=revision, files_metadata=True, timeout=_INFO_TIMEOUT_S)
    files = tuple(HubFile(path=item.rfilename, size_bytes=item.size or 0) for item in info.siblings or ())
    if not info.sha:
        raise HubUnreachableError(f"The hub names no commit for {hub_id}@{revision}.", "Try again, or pin a commit.")
    return HubRevision(kind=kind, hub_id=hub_id, commit=info.sha, files=files)


def read_hub_text(revision: HubRevision, path: str, *, token: str | None) -> str:
    """Return the text of one small file of a repository.

    Raises:
        SourceError: it cannot be downloaded.
    """
    with _errors_explained(revision.kind, revision.hub_id, revision.commit, token):
        local = hf_hub_download(
            revision.hub_id,
            path,
            repo_type=revision.kind,
            revision=revision.commit,
            cache_dir=hub_cache(),
            endpoint=hub_endpoint(),
            token=sendable(token),
        )
    return Path(local).read_text(encoding="utf-8", errors="replace")


def require_access(revision: HubRevision, path: str, *, token: str | None) -> None:
    """Ask for the head of one file: a gated repository lists its files for all, and refuses their content.

    Raises:
        SourceError: it may not be downloaded.
    """
    with _errors_explained(revision.kind, revision.hub_id, revision.commit, token):
        url = hf_hub_url(
            revision.hub_id, path, repo_type=revision.kind, revision=revision.commit, endpoint=hub_endpoint()
        )
        get_hf_file_metadata(url, token=sendable(token), timeout=_INFO_TIMEOUT_S)


def fetch_files(revision: HubRevision, paths: Iterable[str], *, token: str | None) -> Path:
    """Fetch these files of the commit. Return a folder that holds exactly them, as plain files.

    The hub's own cache holds links into a folder of blobs, which break once a snapshot is mounted into a container.
    So the files are linked a second time (hard links, no copy) into a separate folder.

    Raises:
        SourceError: a file cannot be downloaded, or the disk is full.
    """
    names = sorted(paths)
    folder = revision.folder_of(names)
    if folder.is_dir():
        return folder
    current_display().say(f"Fetching {revision.origin}: {len(names)} files, {size(revision.size_bytes(names))}")
    with _errors_explained(revision.kind, revision.hub_id, revision.commit, token):
        snapshot = snapshot_download(
            revision.hub_id,
            repo_type=revision.kind,
            revision=revision.commit,
            allow_patterns=names,
            cache_dir=hub_cache(),
            endpoint=hub_endpoint(),
            token=sendable(token),
        )
    _flatten(Path(snapshot), names, folder, revision=revision)
    write_atomically(folder.parent / _LISTING_FILE, json.dumps(asdict(revision)))
    return folder


def flat_root(kind: RepoKind, hub_id: str, commit: str) -> Path:
    """Parent folder of all selections of files that were fetched from a commit."""
    return hub_cache().parent / "rlhf-snapshots" / f"{kind}s--{hub_id.replace('/', '--')}" / commit


def hub_cache() -> Path:
    """Folder of the hub client's cache. Reads the environment now, unlike the client, which does at import."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser().absolute()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser().absolute() / "hub"
    return Path(constants.HF_HUB_CACHE).absolute()


def cached_file(kind: RepoKind, hub_id: str, path: str, *, revision: str | None) -> Path | None:
    """The file in the hub client's cache; None if it was not fetched. Sends no request."""
    found = try_to_load_from_cache(hub_id, path, cache_dir=hub_cache(), revision=revision, repo_type=kind)
    return Path(found) if isinstance(found, str) else None


def _known_revision(kind: RepoKind, hub_id: str, commit: str) -> HubRevision | None:
    """Return the saved listing of a fetched commit, which never changes; None if there is none."""
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
            link_or_copy(source, target)
        building.chmod(0o755)  # mkdtemp's 700 would keep the container's user out
        building.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # otherwise another process was faster; its folder is as complete as ours
            raise UnusableSourceError(
                f"{revision.origin} cannot be put into {folder}: {error}.",
                "Free space, or set HF_HOME to a folder on another disk.",
            ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to the file, or a copy if that cannot be."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)


def hub_endpoint() -> str | None:
    """The mirror that HF_ENDPOINT names; None: huggingface.co."""
    return os.environ.get("HF_ENDPOINT") or None


@contextmanager
def _errors_explained(kind: RepoKind, hub_id: str, revision: str, token: str | None) -> Iterator[None]:
    """Turn what the hub's client raises inside into a `SourceError`: also the errors of its HTTP library."""
    try:
        yield
    except Exception as error:
        fetched = sorted(path.name for path in flat_root(kind, hub_id, "x").parent.glob("*") if path.is_dir())
        why = explained(error, kind, hub_id, revision=revision, token=token, fetched=fetched)
        raise why from tellable(error, token)
