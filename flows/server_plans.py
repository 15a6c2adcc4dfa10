"""With what the two servers are started: commands and environment. Pure."""

import os
import sys
from pathlib import Path

from flows.server_process import LOOPBACK, ServerPlan

TITLES = {"prefect": "Prefect", "mlflow": "MLflow"}
HEALTH_PATHS = {"prefect": "/api/health", "mlflow": "/health"}
URL_KEYS = {"prefect": "tracking.prefect_api_url", "mlflow": "tracking.mlflow_uri"}
PORT_KEYS = {"prefect": "tracking.prefect_port", "mlflow": "tracking.mlflow_port"}


def server_plan(name: str, state_dir: Path, port: int) -> ServerPlan:
    """How to start the server `prefect` or `mlflow` on that port, with its state in `state_dir`/`name`."""
    make = _prefect_plan if name == "prefect" else _mlflow_plan
    return make(state_dir / name, port)


def _prefect_plan(folder: Path, port: int) -> ServerPlan:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    kept = {name: value for name, value in os.environ.items() if name.startswith("PREFECT_SERVER_")}
    return ServerPlan(
        name="prefect",
        command=(sys.executable, "-m", "prefect", "server", "start", "--host", LOOPBACK, "--port", str(port)),
        environment=own
        # Relative to the server's folder: Prefect's own absolute default breaks where the path holds a `?`.
        | {"PREFECT_SERVER_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:///prefect.db"}
        | kept
        | {
            "PREFECT_HOME": str(folder),
            # Relative, so that the page finds the API on any port.
            "PREFECT_SERVER_UI_API_URL": "/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            # With the default, in memory, slots held at a restart are never freed.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        },
        folder=folder,
        port=port,
    )


def _mlflow_plan(folder: Path, port: int) -> ServerPlan:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    store = ("--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", (folder / "artifacts").as_uri())
    where = ("--host", LOOPBACK, "--port", str(port), "-w", "1")
    return ServerPlan(
        name="mlflow",
        command=(sys.executable, "-m", "mlflow", "server", *store, *where),
        environment=own
        | {
            # Its eight job processes serve GenAI judges only: start 5.5 s instead of 11 s, 0.5 GB instead of 1.1 GB.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "1",
        },
        folder=folder,
        port=port,
    )
