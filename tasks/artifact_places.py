"""Where files for MLflow may go. The server names the place, and MLflow's client obeys: it sends its login to whatever
http address that is, and writes below whatever folder of this machine.
"""

from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from containers.human_text import one_line
from tasks.login_addresses import origin
from tasks.mlflow_sending import RefusedError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

# Their own logins are this machine's own, and go to the store's makers alone.
_OBJECT_STORES = frozenset({"s3", "gs", "abfss", "wasbs"})
_PROXY = "mlflow-artifacts"


@lru_cache(maxsize=64)
def place_of_run(client: "MlflowClient", run_id: str) -> "ArtifactRepository":
    """Where the files of a run go; asked once for each client.

    Raises:
        RefusedError: the server names a place that is neither its own nor an object store.
    """
    return artifact_place(client, client.get_run(run_id).info.artifact_uri)


def artifact_place(client: "MlflowClient", artifact_uri: str) -> "ArtifactRepository":
    """The store at an address that the server of the client named; what was looked at is what is used.

    Raises:
        RefusedError: it is neither the server's own nor an object store.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    if not is_own_place(client.tracking_uri, artifact_uri):
        raise RefusedError(
            f"the MLflow server at {one_line(client.tracking_uri, 100)} wants files at {one_line(artifact_uri, 200)}, "
            "which is neither its own place nor an object store; nothing was sent there. Start the server with "
            "--serve-artifacts, and give the experiment a place of its own"
        )
    return get_artifact_repository(artifact_uri, tracking_uri=client.tracking_uri)


def is_own_place(tracking_uri: str, artifact_uri: str) -> bool:
    """Whether files may go to that address: the server itself, or an object store; anywhere for a database.

    Example: a server at `http://box:5000` may say `mlflow-artifacts:/1/abc/artifacts`, not `file:///home/ada`.
    """
    server = origin(tracking_uri)
    if server[0] not in ("http", "https"):
        return True
    parts = urlsplit(artifact_uri)
    scheme = parts.scheme.lower()
    if scheme in _OBJECT_STORES:
        return True
    if scheme == _PROXY:
        return not parts.netloc or origin(parts._replace(scheme=server[0]).geturl()) == server
    return scheme in ("http", "https") and origin(artifact_uri) == server
