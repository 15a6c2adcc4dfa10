"""Servers on databases of the user's own: both kinds work, passwords stay unseen, and what cannot work is explained."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fakes.health_server import HealthServer
from fakes.postgres import PASSWORD, USER, Postgres, running_postgres

from flows.servers.commands import server_plan
from flows.servers.local import ServerSettings, local_servers
from flows.servers.process import ServerError

MAKE_EXPERIMENT = "from mlflow import MlflowClient; MlflowClient().create_experiment('kept')"
READ_EXPERIMENT = "from mlflow import MlflowClient; print(MlflowClient().get_experiment_by_name('kept').name)"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        for name in ("prefect", "mlflow"):
            server.run(f"create database {name}")
        yield server


@pytest.fixture(scope="module")
def sqlite_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with both databases as the installed versions make them."""
    folder = tmp_path_factory.mktemp("sqlite")
    with local_servers(ServerSettings(state_dir=folder), say=lambda text: None):
        return folder


def only(name: str, state_dir: Path, healthy: str, **settings: str) -> ServerSettings:
    """Settings with which just this server is started here."""
    other = {"mlflow_uri": healthy} if name == "prefect" else {"prefect_api_url": f"{healthy}/api"}
    return ServerSettings(state_dir=state_dir, **other, **settings)  # type: ignore[arg-type]


def why_not(settings: ServerSettings) -> str:
    """What is said where the servers do not start; nothing of theirs is left then."""
    with pytest.raises(ServerError) as caught, local_servers(settings, say=lambda text: None):
        pass
    assert not (settings.state_dir / "servers.json").exists()
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


def in_mlflow(script: str, uri: str) -> str:
    command, variables = [sys.executable, "-c", script], os.environ | {"MLFLOW_TRACKING_URI": uri}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.fixture
def healthy() -> Iterator[str]:
    server = HealthServer()
    yield server.url
    server.close()


@pytest.mark.slow
def test_both_keep_their_rows_in_postgresql_and_no_password_is_seen(postgres: Postgres, tmp_path: Path) -> None:
    said: list[str] = []
    first = ServerSettings(
        state_dir=tmp_path / "one", prefect_database=postgres.url("prefect"), mlflow_database=postgres.url("mlflow")
    )
    with local_servers(first, say=said.append) as servers:
        in_mlflow(MAKE_EXPERIMENT, servers.mlflow_uri)
        record = (tmp_path / "one/servers.json").read_text()
        leaders = [server["pid"] for server in json.loads(record)["servers"]]
        commands = [" ".join(child.cmdline()) for pid in leaders for child in family(pid)]
        shown = "\n".join((record, *said, *commands, *(path.read_text() for path in tmp_path.rglob("*.log"))))
    assert "127.0.0.1" in record
    for secret in (PASSWORD, postgres.url("x").split(":")[2].partition("@")[0]):
        assert secret not in shown
    assert not list(tmp_path.rglob("*.db"))
    assert postgres.run("select count(*) from flow_run", database="prefect") == "0"
    assert postgres.run("select name from experiments where name = 'kept'", database="mlflow") == "kept"


def family(pid: int) -> list[psutil.Process]:
    leader = psutil.Process(pid)
    return [leader, *leader.children(recursive=True)]


@pytest.mark.slow
def test_the_password_may_lie_in_a_file_and_the_urls_in_the_environment(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # asyncpg, unlike libpq, takes no escaped colon.
    postgres.run("create role plain superuser login password 'plain-word-5d2e'")
    (tmp_path / "pgpass").write_text(f"127.0.0.1:{postgres.port}:*:plain:plain-word-5d2e\n")
    (tmp_path / "pgpass").chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))

    def passwordless(database: str) -> str:
        return f"postgresql://plain@127.0.0.1:{postgres.port}/{database}"

    for name in ("again_prefect", "again_mlflow"):
        postgres.run(f"create database {name}")
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", passwordless("again_prefect"))
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", passwordless("again_mlflow"))
    for state in ("one", "two"):
        with local_servers(ServerSettings(state_dir=tmp_path / state), say=lambda text: None) as servers:
            if state == "one":
                in_mlflow(MAKE_EXPERIMENT, servers.mlflow_uri)
            assert in_mlflow(READ_EXPERIMENT, servers.mlflow_uri) == "kept\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prefect", "mlflow"])
@pytest.mark.parametrize(
    ("database", "password", "expected"),
    [
        ("prefect", "wrong-password", f"refuses the password of user `{USER}`. Correct it in the URL"),
        ("nowhere", PASSWORD, "there is no database `nowhere` at "),
    ],
)
def test_a_postgresql_that_refuses_is_told_in_seconds(
    postgres: Postgres, healthy: str, tmp_path: Path, name: str, database: str, password: str, expected: str
) -> None:
    began = time.monotonic()
    url = postgres.url(database, password=password)
    said = why_not(only(name, tmp_path, healthy, **{f"{name}_database": url}))
    assert expected in said
    assert password not in said
    assert time.monotonic() - began < 90  # MLflow itself gives up after 110 s


@pytest.mark.parametrize("name", ["prefect", "mlflow"])
def test_a_database_that_does_not_answer_is_told_before_anything_starts(
    healthy: str, tmp_path: Path, name: str
) -> None:
    settings = only(name, tmp_path, healthy, **{f"{name}_database": "postgresql://me:secret@127.0.0.1:9/x"})
    said = why_not(settings)
    assert "no database answers at 127.0.0.1:9 (Connection refused). Start it, or correct the URL postgresql://" in said
    assert not (tmp_path / name).exists()


def test_a_password_in_the_command_is_refused_with_where_to_put_it(
    healthy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://me:secret@127.0.0.1:9/x"
    monkeypatch.setattr(sys, "argv", ["rlhf", "serve", f"--mlflow-database={url}"])
    said = why_not(only("mlflow", tmp_path, healthy, mlflow_database=url))
    assert "the password of postgresql://127.0.0.1:9/x is in the command" in said
    assert "Set MLFLOW_BACKEND_STORE_URI to the URL instead" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "revision", "expected"),
    [
        (
            "prefect",
            "ffffffffffff",
            "was left by a newer Prefect (revision ffffffffffff, which this one does not know)",
        ),
        ("mlflow", "ffffffffffff", "was left by another, probably newer MLflow (schema ffffffffffff, this one knows"),
        ("mlflow", "df50e92ffc5e", "was made by an older MLflow (schema df50e92ffc5e, wanted"),
    ],
)
def test_a_database_of_another_version_is_told_with_what_to_do(
    sqlite_files: Path, healthy: str, tmp_path: Path, name: str, revision: str, expected: str
) -> None:
    shutil.copytree(sqlite_files, tmp_path / "state")
    with sqlite3.connect(tmp_path / f"state/{name}/{name}.db") as database:
        database.execute("update alembic_version set version_num = ?", (revision,))
    assert expected in why_not(only(name, tmp_path / "state", healthy))


@pytest.mark.slow
def test_a_database_of_an_older_mlflow_is_brought_up_to_date_by_the_start(healthy: str, tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    # As MLflow 1.0 left it: its first tables, and its own migrations up to then.
    script = (
        "from alembic import command; from mlflow.store.db.utils import _get_alembic_config\n"
        "from sqlalchemy import create_engine; from mlflow.store.tracking.dbmodels.initial_models import Base\n"
        "Base.metadata.create_all(create_engine('sqlite:///mlflow.db'))\n"
        "command.upgrade(_get_alembic_config('sqlite:///mlflow.db'), 'df50e92ffc5e')"
    )
    made = [sys.executable, "-c", script]
    subprocess.run(made, cwd=tmp_path / "mlflow", check=True, capture_output=True, timeout=120)
    with local_servers(only("mlflow", tmp_path, healthy), say=lambda text: None) as servers:
        in_mlflow(MAKE_EXPERIMENT, servers.mlflow_uri)


@pytest.mark.slow
def test_a_database_of_an_older_prefect_is_brought_up_to_date_by_the_start(
    sqlite_files: Path, healthy: str, tmp_path: Path
) -> None:
    shutil.copytree(sqlite_files, tmp_path / "state")
    plan = server_plan("prefect", tmp_path / "state", 0)
    downgrade = [sys.executable, "-m", "prefect", "server", "database", "downgrade", "-y", "-r", "-1"]
    subprocess.run(downgrade, cwd=plan.folder, env=dict(plan.environment), check=True, capture_output=True, timeout=120)
    revisions = [revision(plan.folder / "prefect.db")]
    with local_servers(only("prefect", tmp_path / "state", healthy), say=lambda text: None):
        revisions.append(revision(plan.folder / "prefect.db"))
    assert revisions[0] != revisions[1] == revision(sqlite_files / "prefect/prefect.db")


def revision(file: Path) -> str:
    with sqlite3.connect(file) as database:
        return str(database.execute("select version_num from alembic_version").fetchone()[0])


@pytest.mark.slow
def test_a_server_in_use_is_not_taken_for_one_on_another_database(
    sqlite_files: Path, healthy: str, tmp_path: Path
) -> None:
    shutil.copytree(sqlite_files, tmp_path / "state")
    other = only("mlflow", tmp_path / "state", healthy, mlflow_database="sqlite:///other.db")
    refused = r"keeps its rows in sqlite:///mlflow\.db instead of sqlite:///other\.db, and is in use"
    with local_servers(only("mlflow", tmp_path / "state", healthy), say=lambda text: None):
        with pytest.raises(ServerError, match=refused), local_servers(other, say=lambda text: None):
            pass
        record = json.loads((tmp_path / "state/servers.json").read_text())
        assert psutil.pid_exists(record["servers"][0]["pid"])
