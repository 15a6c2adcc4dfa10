"""The lasting installation keeps its promises: loopback, logins, no secret in what `docker inspect` would show."""

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

SERVERS = ("postgres", "prefect", "mlflow")


@pytest.fixture
def folder(project: Path) -> Path:
    return project / "containers/compose"


@pytest.fixture
def services(folder: Path) -> dict[str, dict[str, Any]]:
    found = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert isinstance(found, dict)
    return found


def test_only_the_proxy_can_be_reached_from_other_machines(services: dict[str, dict[str, Any]]) -> None:
    wide = {
        name
        for name, service in services.items()
        if any(not port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    }
    assert wide == {"proxy"}
    assert services["proxy"]["profiles"] == ["proxy"]


def test_every_secret_comes_as_a_file_that_the_service_is_given(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        variables = service.get("environment", {})
        files = {value.rpartition("/")[2] for name, value in variables.items() if name.endswith("_FILE")}
        assert files == set(service.get("secrets", ()))
        wordy = ("PASSWORD", "AUTH_STRING", "SECRET_KEY", "TOKEN")
        assert not [name for name in variables if name.endswith(wordy)]
        assert not [name for name, value in variables.items() if "://" in str(value) and ":@" in str(value)]


def test_every_server_says_when_it_is_healthy_and_the_worker_waits_for_that(
    services: dict[str, dict[str, Any]],
) -> None:
    assert all("healthcheck" in services[name] for name in SERVERS)
    waits = services["worker"]["depends_on"]
    assert {name: item["condition"] for name, item in waits.items()} == {
        "prefect": "service_healthy",
        "mlflow": "service_healthy",
    }


def test_mlflow_demands_a_login_on_every_route(services: dict[str, dict[str, Any]]) -> None:
    assert "--app-name=basic-auth" in services["mlflow"]["command"]
    assert services["mlflow"]["environment"]["MLFLOW_BASIC_AUTH_FAIL_CLOSED"] == "true"


@pytest.mark.parametrize("profiles", [(), ("worker", "proxy")])
def test_compose_itself_takes_the_file(folder: Path, profiles: tuple[str, ...]) -> None:
    command = _compose()
    chosen = [word for name in profiles for word in ("--profile", name)]
    asked = subprocess.run(
        [*command, "-f", str(folder / "compose.yaml"), *chosen, "config", "-q"], capture_output=True, text=True
    )
    assert (asked.returncode, asked.stderr) == (0, "")


def _compose() -> list[str]:
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if shutil.which("docker"):
        asked = subprocess.run(["docker", "compose", "version"], capture_output=True)
        if asked.returncode == 0:
            return ["docker", "compose"]
    pytest.skip("NO COMPOSE IS INSTALLED, so it did not read compose.yaml (apt-get install docker-compose).")


def test_secrets_are_made_once_and_for_their_owner_only(folder: Path, tmp_path: Path) -> None:
    made = []
    for _ in range(2):
        subprocess.run([folder / "make_secrets.sh", tmp_path / "secrets"], check=True, capture_output=True)
        made.append({path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()})
    assert made[0] == made[1]
    assert len(set(made[0].values())) == 4
    assert made[0]["prefect_login"].startswith("team:")
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (tmp_path / "secrets").iterdir())


def test_a_command_gets_secrets_from_files_as_variables(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss word$HOME'\"\n")
    variables = {"SECRETS_FOLDER": str(tmp_path), "LOGIN_FILE": str(tmp_path / "password"), "OTHER_FILE": "/etc/other"}
    script = 'printf "%s|%s|%s" "$LOGIN" "${LOGIN_FILE:-gone}" "$OTHER_FILE"'
    asked = with_secrets(folder, variables, script)
    assert asked.stdout == "p@ss word$HOME'\"|gone|/etc/other"


def test_a_secret_that_is_not_there_stops_the_start_with_its_name(folder: Path, tmp_path: Path) -> None:
    variables = {"SECRETS_FOLDER": str(tmp_path), "LOGIN_FILE": str(tmp_path / "nothing")}
    asked = with_secrets(folder, variables, "echo started")
    assert (asked.returncode, asked.stdout) == (1, "")
    assert f"LOGIN_FILE names {tmp_path}/nothing, which is not there" in asked.stderr


def with_secrets(folder: Path, variables: dict[str, str], script: str) -> subprocess.CompletedProcess[str]:
    command = [str(folder / "with_secrets.sh"), "sh", "-c", script]
    return subprocess.run(command, env={"PATH": os.environ["PATH"], **variables}, capture_output=True, text=True)
