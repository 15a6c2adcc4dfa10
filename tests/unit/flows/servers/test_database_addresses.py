"""A database URL is understood with or without a driver, and shown without what nobody else may see."""

import pytest

from flows.servers.databases import database_problem, secrets_in_url, shown_database, with_driver


@pytest.mark.parametrize(
    ("name", "url", "expected"),
    [
        ("prefect", "postgresql://host/x", "postgresql+asyncpg://host/x"),
        ("prefect", "sqlite:///x.db", "sqlite+aiosqlite:///x.db"),
        ("prefect", "postgresql+asyncpg://host/x", "postgresql+asyncpg://host/x"),
        ("mlflow", "postgresql://host/x", "postgresql+psycopg2://host/x"),
        ("mlflow", "sqlite:///x.db", "sqlite:///x.db"),
        ("mlflow", "mysql://host/x", "mysql+pymysql://host/x"),
    ],
)
def test_a_url_without_a_driver_gets_the_one_that_the_server_works_with(name: str, url: str, expected: str) -> None:
    assert with_driver(name, url) == expected


@pytest.mark.parametrize(
    ("name", "url", "expected"),
    [
        ("prefect", "postgresql+psycopg2://host/x", "names the driver psycopg2; this server works with asyncpg. Write"),
        (
            "mlflow",
            "postgresql+asyncpg://host/x",
            "names the driver asyncpg; this server works with psycopg2 or psycopg",
        ),
        ("prefect", "mysql://host/x", "is no database that this server works with"),
        ("mlflow", "./mlruns", "is no database that this server works with"),
        ("mlflow", "postgresql://host", "names no database"),
        ("prefect", "postgresql://host:0/x", "names port 0"),
        ("prefect", "postgresql://me:geheim@host:99999/x", "is no database URL"),
        ("prefect", "postgresql://me:ge/heim@host/x", "is no database URL"),
        ("mlflow", "mysql+pymysql://host/x", "needs the package pymysql, which this Python lacks"),
    ],
)
def test_what_no_server_can_use_is_told_with_what_to_write(name: str, url: str, expected: str) -> None:
    problem = database_problem(name, url)
    assert problem is not None
    assert expected in problem
    assert "heim" not in problem


@pytest.mark.parametrize("name", ["prefect", "mlflow"])
def test_what_a_server_can_use_is_no_problem(name: str) -> None:
    assert database_problem(name, "postgresql://me:p%40ss@host:5432/x?sslmode=require") is None
    assert database_problem(name, "sqlite:///file.db") is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:p%40ss@host:5432/x", "postgresql://host:5432/x"),
        ("postgresql://me:p@ss@host/x", "postgresql://host/x"),
        ("postgresql://host/x?user=me&password=secret", "postgresql://host/x"),
        ("sqlite:////data/me@home/x.db", "sqlite:////data/me@home/x.db"),
    ],
)
def test_a_url_is_shown_without_user_password_and_options(url: str, shown: str) -> None:
    assert shown_database(url) == shown


def test_the_password_is_known_as_written_and_as_meant() -> None:
    assert set(secrets_in_url("postgresql://me:p%40ss@host/x")) == {"p%40ss", "p@ss"}
    assert secrets_in_url("sqlite:///x.db") == ()
