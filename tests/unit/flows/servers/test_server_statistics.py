"""Nothing about a run goes to the makers of its servers, unless its user says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.servers.commands import server_plan

# What the libraries themselves make of their environment, once the command has begun.
CLIENTS = """
from contextlib import suppress
from flows.cli.main import main
with suppress(SystemExit):
    main(["keys"])
from mlflow.telemetry import utils
utils._IS_IN_CI_ENV_OR_TESTING = False
from prefect._internal.analytics.enabled import is_telemetry_enabled
from prefect._internal.analytics import enabled
enabled.is_ci_environment = lambda: False
from prefect.settings import get_current_settings
print("found", utils.is_telemetry_disabled(), is_telemetry_enabled(), get_current_settings().server.analytics_enabled)
"""
NAMES = ("DO_NOT_TRACK", "PREFECT_SERVER_ANALYTICS_ENABLED", "MLFLOW_DISABLE_TELEMETRY")


@pytest.fixture(autouse=True)
def _nobody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.waits
def test_clients_of_a_command_send_none(tmp_path: Path) -> None:
    asked = subprocess.run([sys.executable, "-c", CLIENTS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert asked.stdout.splitlines()[-1] == "found True False False", asked.stderr


@pytest.mark.parametrize("name", ["prefect", "mlflow"])
def test_servers_send_none_unless_the_user_set_it(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    off = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    assert server_plan(name, tmp_path, 4200).environment.items() >= off.items()
    chosen = {"DO_NOT_TRACK": "0", "PREFECT_SERVER_ANALYTICS_ENABLED": "true", "MLFLOW_DISABLE_TELEMETRY": "false"}
    for variable, value in chosen.items():
        monkeypatch.setenv(variable, value)
    assert server_plan(name, tmp_path, 4200).environment.items() >= chosen.items()
    assert os.environ["DO_NOT_TRACK"] == "0"
