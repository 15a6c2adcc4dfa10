"""What the next start does to a server's database is known beforehand, by the migrations of what is installed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from flows.servers.databases import migrations_of
from flows.upgrades import database_upgrade_lines, revision_of

SERVERS = ("prefect", "mlflow")


def database(state_dir: Path, name: str, revision: str) -> Path:
    """A file as that migration leaves its table of migrations."""
    file = state_dir / name / f"{name}.db"
    file.parent.mkdir(parents=True)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("create table alembic_version (version_num varchar(32))")
        connection.execute("insert into alembic_version values (?)", (revision,))
        connection.commit()
    return file


def ends_of(name: str) -> tuple[str, str]:
    """First and last migration."""
    known = migrations_of(name)
    before = {parent for parents in known.values() for parent in parents}
    (first,) = (revision for revision, parents in known.items() if not parents)
    (last,) = set(known) - before
    return first, last


@pytest.mark.parametrize("name", SERVERS)
def test_the_migrations_of_the_installed_server_form_one_line(name: str) -> None:
    assert len(migrations_of(name)) > 20
    first, last = ends_of(name)
    assert first != last


@pytest.mark.parametrize("name", SERVERS)
def test_a_database_that_is_up_to_date_or_not_there_is_not_mentioned(tmp_path: Path, name: str) -> None:
    assert list(database_upgrade_lines(tmp_path, [name])) == []
    database(tmp_path, name, ends_of(name)[1])
    assert list(database_upgrade_lines(tmp_path, [name])) == []


@pytest.mark.parametrize("name", SERVERS)
def test_an_older_database_is_said_to_be_migrated_with_a_backup_first(tmp_path: Path, name: str) -> None:
    file = database(tmp_path, name, ends_of(name)[0])
    before = file.read_bytes()
    (line,) = database_upgrade_lines(tmp_path, [name])
    assert f"{len(migrations_of(name)) - 1} migrations behind" in line
    assert "upgrades it when it starts" in line
    assert ("mlflow db upgrade" in line) == (name == "mlflow")
    assert "copy the file first" in line
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", SERVERS)
def test_a_database_of_a_newer_server_is_said_before_it_refuses_to_start(tmp_path: Path, name: str) -> None:
    database(tmp_path, name, "ffffffffffff")
    (line,) = database_upgrade_lines(tmp_path, [name])
    assert "probably newer" in line and "ffffffffffff" in line and "will not start on it" in line


def test_what_is_no_database_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow/mlflow.db").write_bytes(b"no database, but some bytes" * 100)
    assert revision_of(tmp_path / "mlflow/mlflow.db") == ""
    assert list(database_upgrade_lines(tmp_path, SERVERS)) == []
