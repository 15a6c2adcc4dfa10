"""Check the address that MLflow names for files: it must be on the run's own server or in an object store.

MLflow's client uploads to the address that the server answers. It writes below any `file:` path as this user, and sends
the login of the environment to any `http:` host. So this module reads the address once, checks it, and keeps it: a
server cannot exchange it after the check.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from containers.formatting import one_line
from tasks.config.logins import origin, without_login
from tasks.mlflow_sync.sending import RefusedError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

# The clients of these stores have their own logins, and sign with them instead of sending them.
_OBJECT_STORES = ("s3", "gs")
# Azure's client may send a token, so the host has to be Azure's.
_AZURE_STORES = ("abfss", "wasbs")
_AZURE_HOST = re.compile(r"[\w$-]+@[\w.-]+\.core\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)", re.ASCII)
_WEB = ("http", "https")
_PROXY = "mlflow-artifacts"
# Clients disagree about the host of an address that contains one of these characters.
_AMBIGUOUS = re.compile(r"[\\\s\x00-\x1f\x7f]")
_MAX_SHOWN_CHARACTERS = 200
_MAX_REPOSITORIES = 64

# Client → run → address of the run's files: one request to the server for each run.
_addresses: "WeakKeyDictionary[MlflowClient, dict[str, str]]" = WeakKeyDictionary()


class OtherPlaceError(RefusedError):
    """The server's address for files is neither its own nor in an object store; nothing was sent."""


def upload_file(client: "MlflowClient", run_id: str, path: Path, *, folder: str) -> None:
    """Upload a file into `folder` of the run's artifacts.

    Raises:
        OtherPlaceError: the server names a place that is neither its own nor an object store.
    """
    if not _is_web(client.tracking_uri):
        client.log_artifact(run_id, str(path), folder or None)
        return
    known = _addresses.setdefault(client, {})
    if run_id not in known:
        known[run_id] = str(client.get_run(run_id).info.artifact_uri)
    require_own_place(client.tracking_uri, known[run_id], owner=run_id)
    _repository(known[run_id], client.tracking_uri).log_artifact(str(path), folder or None)


def upload_model_files(client: "MlflowClient", model: "LoggedModel", folder: Path) -> None:
    """Upload the files of a folder to a logged model.

    Raises:
        OtherPlaceError: the server names a place that is neither its own nor an object store.
    """
    if not _is_web(client.tracking_uri):
        client.log_model_artifacts(model.model_id, str(folder))
        return
    address = str(model.artifact_location)
    require_own_place(client.tracking_uri, address, owner=model.model_id)
    _repository(address, client.tracking_uri).log_artifacts(str(folder))


def require_own_place(tracking_uri: str, address: str, *, owner: str = "") -> None:
    """Raise unless files may be sent to that address; a tracking URI that is a database allows every address.

    Args:
        address: the place of the files, as the server answered it.
        owner: id of the run or model; the message leaves it out, so that all runs of an experiment share one message.

    Raises:
        OtherPlaceError: the address is neither the server's own nor in an object store.

    Example: for `http://host:5000`, `mlflow-artifacts:/1/ab/artifacts` passes; `file:///home/ada` does not.
    """
    if not _is_web(tracking_uri) or _is_own(tracking_uri, address):
        return
    place = address.partition(f"/{owner}")[0] if owner else address
    shown = one_line(re.sub(r"//[^/]*@", "//", place), _MAX_SHOWN_CHARACTERS)
    raise OtherPlaceError(
        f"no files are sent: {without_login(tracking_uri)} names {shown} as their place. That is neither this server "
        f"nor an object store ({', '.join((*_OBJECT_STORES, *_AZURE_STORES))}), so another user may own it. "
        "Start the MLflow server with --artifacts-destination and without --default-artifact-root, and name a new "
        "experiment (tracking.experiment): an experiment keeps its place"
    )


def _is_own(tracking_uri: str, address: str) -> bool:
    """Whether the address is on the tracking server or in an object store."""
    if _AMBIGUOUS.search(address):
        return False
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    if parts.scheme in _OBJECT_STORES:
        return True
    if parts.scheme in _AZURE_STORES:
        return _AZURE_HOST.fullmatch(parts.netloc) is not None
    if parts.scheme == _PROXY and not parts.netloc:
        return True
    if parts.scheme not in (*_WEB, _PROXY) or "@" in parts.netloc:
        return False
    # MLflow's client puts the scheme of the tracking URI before the host of a mlflow-artifacts address.
    scheme = urlsplit(tracking_uri).scheme if parts.scheme == _PROXY else parts.scheme
    return origin(f"{scheme}://{parts.netloc}") == origin(tracking_uri)


def _is_web(tracking_uri: str) -> bool:
    return tracking_uri.strip().lower().startswith(tuple(f"{scheme}:" for scheme in _WEB))


@lru_cache(maxsize=_MAX_REPOSITORIES)
def _repository(address: str, tracking_uri: str) -> "ArtifactRepository":
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(address, tracking_uri=tracking_uri)
