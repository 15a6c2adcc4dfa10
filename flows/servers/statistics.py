"""Usage statistics that Prefect and MLflow send to their makers: off, unless the user set them."""

import os

# Prefect's server; Prefect's clients; MLflow's server and clients.
_OFF = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}


def statistics_variables() -> dict[str, str]:
    """What the environment of servers and clients holds about statistics."""
    return {name: os.environ.get(name, off) for name, off in _OFF.items()}


def switch_statistics_off() -> None:
    """For the clients of this process and its children; MLflow's reads it when it is imported."""
    os.environ.update(statistics_variables())
