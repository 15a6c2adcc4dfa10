"""Settings of the two servers of a state folder; their usage statistics are off."""

import os
from dataclasses import dataclass
from pathlib import Path

from flows.servers.databases import DATABASE_VARIABLES
from flows.servers.process import LOOPBACK

# State of the servers that all runs of the current folder share.
STATE_DIR = Path("outputs") / ".servers"
# Prefect's server; Prefect's clients; MLflow's server and clients.
_OFF = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}


@dataclass(frozen=True)
class ServerSettings:
    """Where the servers are, or where and on which ports to start them.

    Attributes:
        prefect_port, mlflow_port: 0 is any free one; None is the usual one, or any free one if that is taken.
        host: interface that servers started here listen on; beyond loopback they demand a login.
        prefect_login: whether a Prefect started here demands a login if the user chose none; then one is made.
        prefect_database: URL of the database of a Prefect started here; None: PREFECT_SERVER_DATABASE_CONNECTION_URL,
            else SQLite in `state_dir`.
        mlflow_database: the same for MLflow and MLFLOW_BACKEND_STORE_URI.
        idle_limit_s: a starting server that does nothing for so long is given up.
        longest_start_s: longest wait for one that is at work; a migration of a large database takes minutes.
    """

    state_dir: Path
    prefect_api_url: str | None = None
    mlflow_uri: str | None = None
    prefect_port: int | None = 0
    mlflow_port: int | None = 0
    host: str = LOOPBACK
    prefect_login: bool = True
    prefect_database: str | None = None
    mlflow_database: str | None = None
    idle_limit_s: float = 120.0
    longest_start_s: float = 3600.0

    def port(self, name: str) -> int | None:
        """The port that `prefect` or `mlflow` is to listen on, as above."""
        return self.prefect_port if name == "prefect" else self.mlflow_port

    def database(self, name: str) -> str | None:
        """URL of the database that `prefect` or `mlflow` is to use; None: SQLite in `state_dir`."""
        own = self.prefect_database if name == "prefect" else self.mlflow_database
        return own or os.environ.get(DATABASE_VARIABLES[name]) or None


def statistics_variables() -> dict[str, str]:
    """Variables about statistics for the environment of servers and clients."""
    return {name: os.environ.get(name, off) for name, off in _OFF.items()}


def switch_statistics_off() -> None:
    """Switch statistics off for clients in this process and its children; MLflow's reads this at import."""
    os.environ.update(statistics_variables())
