"""What is asked of the two servers of a state folder."""

import os
from dataclasses import dataclass
from pathlib import Path

from flows.server_databases import DATABASE_VARIABLES
from flows.server_process import LOOPBACK


@dataclass(frozen=True)
class ServerSettings:
    """Where the servers are, or where and on which ports to start them; port 0 is any free one.

    Attributes:
        host: interface that servers started here listen on; beyond loopback they demand a login.
        prefect_database: URL of the database of a Prefect started here; None: PREFECT_SERVER_DATABASE_CONNECTION_URL,
            else SQLite in `state_dir`.
        mlflow_database: the same for MLflow and MLFLOW_BACKEND_STORE_URI.
    """

    state_dir: Path
    prefect_api_url: str | None = None
    mlflow_uri: str | None = None
    prefect_port: int = 0
    mlflow_port: int = 0
    host: str = LOOPBACK
    prefect_database: str | None = None
    mlflow_database: str | None = None
    startup_limit_s: float = 120.0

    def database(self, name: str) -> str | None:
        """URL of the database that `prefect` or `mlflow` is to use; None: SQLite in `state_dir`."""
        own = self.prefect_database if name == "prefect" else self.mlflow_database
        return own or os.environ.get(DATABASE_VARIABLES[name]) or None
