"""Commands and environment of the two servers.

No command holds a password: every user of the machine can read commands, but only the owner reads the environment.
"""

import os
import sys
from pathlib import Path

from flows.servers.databases import DATABASE_VARIABLES, secrets_in_url, shown_database, with_driver
from flows.servers.logins import flask_secret_key, is_loopback, names_of_this_machine
from flows.servers.process import LOOPBACK, ServerPlan
from flows.servers.settings import statistics_variables

TITLES = {"prefect": "Prefect", "mlflow": "MLflow"}
HEALTH_PATHS = {"prefect": "/api/health", "mlflow": "/health"}
URL_KEYS = {"prefect": "tracking.prefect_api_url", "mlflow": "tracking.mlflow_uri"}
PORT_KEYS = {"prefect": "tracking.prefect_port", "mlflow": "tracking.mlflow_port"}
USUAL_PORTS = {"prefect": 4200, "mlflow": 5000}
# Relative to the server's folder: Prefect's own absolute default breaks if the path has a `?`.
_OWN_DATABASES = {"prefect": "sqlite+aiosqlite:///prefect.db", "mlflow": "sqlite:///mlflow.db"}

# Of no use to a server, so not in its environment.
_OTHERS_PREFIXES = ("PREFECT_", "MLFLOW_", "WANDB_")
_OTHERS_NAMES = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HUGGINGFACE_HUB_TOKEN"})
_EXTRA_HOSTS = "MLFLOW_SERVER_ALLOWED_HOSTS"
_EXTRA_ORIGINS = {"prefect": "PREFECT_SERVER_CORS_ALLOWED_ORIGINS", "mlflow": "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"}


def server_plan(
    name: str, state_dir: Path, port: int, *, host: str = LOOPBACK, database: str | None = None, login: str = ""
) -> ServerPlan:
    """How to start the server `prefect` or `mlflow` on that port, with its state in `state_dir`/`name`.

    Args:
        database: its URL; None: the one that the server's own variable names, else SQLite in that folder.
        login: `user:password` that it demands; empty: none.
    """
    folder = state_dir / name
    url = with_driver(name, database or os.environ.get(DATABASE_VARIABLES[name]) or "") or _OWN_DATABASES[name]
    where = ("--host", host, "--port", str(port))
    if name == "prefect":
        command = ("prefect", "server", "start", *where)
        variables = _prefect_variables(folder, port, host, login)
    else:
        storage = ("-w", "1", "--artifacts-destination", (folder / "artifacts").as_uri())
        command = ("mlflow", "server", *where, *storage, *(("--app-name", "basic-auth") if login else ()))
        variables = _mlflow_variables(folder, port, host, login)
    return ServerPlan(
        name=name,
        command=(sys.executable, "-m", *command),
        environment=_environment() | statistics_variables() | variables | {DATABASE_VARIABLES[name]: url},
        folder=folder,
        port=port,
        host=host,
        database=shown_database(url),
        login=login,
        secrets=(*secrets_in_url(url), *((login, login.partition(":")[2]) if login else ())),
    )


def _prefect_variables(folder: Path, port: int, host: str, login: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith("PREFECT_SERVER_")}
    return (
        # Prefect's default lets every page in the user's browser call the API.
        {
            _EXTRA_ORIGINS["prefect"]: ",".join(_origins(names_of_this_machine(host), port)),
            # Else every page in the user's browser can start runs here: for a POST without a content type, browsers
            # do not ask first whether the origin may.
            "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        }
        | kept
        | ({"PREFECT_SERVER_API_AUTH_STRING": login} if login else {})
        | {
            "PREFECT_HOME": str(folder),
            # Relative, so that the page finds the API under any name and port.
            "PREFECT_SERVER_UI_API_URL": "/api",
            # With the default, in memory, slots held at a restart are never freed.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        }
    )


def _mlflow_variables(folder: Path, port: int, host: str, login: str) -> dict[str, str]:
    return {
        **_mlflow_names(host, port),
        **(_mlflow_login(folder, login) if login else {}),
        # Its eight job processes serve GenAI judges only: start 5.5 s instead of 11 s, 0.5 GB instead of 1.1 GB.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def _environment() -> dict[str, str]:
    """This process's environment without other programs' variables, above all their secrets."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OTHERS_PREFIXES) and name not in _OTHERS_NAMES
    }


def _mlflow_names(host: str, port: int) -> dict[str, str]:
    """Variables with the names under which MLflow answers; none: its own list of local and private addresses.

    A page sends its origin even if that is MLflow's, so the origins must be named too.
    """
    extra = [name.strip() for name in os.environ.get(_EXTRA_HOSTS, "").split(",") if name.strip()]
    if is_loopback(host) and not extra:
        return {}
    names = [*names_of_this_machine(host), *extra]
    origins = [*_origins(names, port), *filter(None, os.environ.get(_EXTRA_ORIGINS["mlflow"], "").split(","))]
    # A name twice in the list does no harm, but is hard to read in MLflow's log.
    hosts = dict.fromkeys(form for name in names for form in (name, f"{name}:{port}"))
    return {_EXTRA_HOSTS: ",".join(hosts), _EXTRA_ORIGINS["mlflow"]: ",".join(dict.fromkeys(origins))}


def _origins(names: tuple[str, ...] | list[str], port: int) -> tuple[str, ...]:
    """Origins of pages under these names: on the server's port, or behind a TLS proxy."""
    return tuple(dict.fromkeys(form for name in names for form in (f"http://{name}:{port}", f"https://{name}")))


def _mlflow_login(folder: Path, login: str) -> dict[str, str]:
    user, _, password = login.partition(":")
    return {
        # MLflow reads these when it makes the file of users; later the users in it count.
        "MLFLOW_AUTH_ADMIN_USERNAME": user,
        "MLFLOW_AUTH_ADMIN_PASSWORD": password,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": flask_secret_key(folder),
        # By default, routes without their own rule need no login.
        "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true",
    }
