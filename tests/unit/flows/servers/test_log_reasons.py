"""What a server's own log says is told in one sentence with what to do; lines as the servers wrote them."""

import pytest

from flows.servers.log_reasons import masked, reason_in

# Written by prefect 3.8.8 and mlflow 3.17.2 on PostgreSQL 15 and SQLite.
PREFECT_PASSWORD = (
    "sqlalchemy.exc.DBAPIError: (sqlalchemy.dialects.postgresql.asyncpg.Error) password authentication failed for user "
    '"rlhf"'
)
PREFECT_REVISION = "alembic.util.exc.CommandError: Can't locate revision identified by 'ffffffffffff'"
MLFLOW_DATABASE = (
    'psycopg2.OperationalError: connection to server at "127.0.0.1", port 55432 failed: FATAL:  database "nothere" '
    "does not exist"
)
MLFLOW_SCHEMA = (
    "ERROR mlflow.cli: Detected out-of-date database schema (found version {}, but expected dc11669786a5). Take a "
    "backup of your database, then run 'mlflow db upgrade <database_uri>'"
)
DRAWN_OUT = "INFO:     Application startup complete.\nINFO:     Uvicorn running on http://127.0.0.1:4200"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (PREFECT_PASSWORD, "the database DB refuses the password of user `rlhf`"),
        (PREFECT_REVISION, "was left by a newer Prefect (revision ffffffffffff"),
        (MLFLOW_DATABASE, "there is no database `nothere` at DB. Make it (`createdb nothere`)"),
        (
            MLFLOW_SCHEMA.format("df50e92ffc5e"),
            "was made by an older MLflow (schema df50e92ffc5e, wanted dc11669786a5)",
        ),
        (MLFLOW_SCHEMA.format("ffffffffffff"), "was left by another, probably newer MLflow (schema ffffffffffff"),
        ('error: permission denied to create extension "pg_trgm"', "`CREATE EXTENSION pg_trgm;`"),
        ("sqlite3.DatabaseError: file is not a database", "Restore a backup, or move the file away"),
    ],
)
def test_a_known_line_becomes_reason_and_advice(log: str, expected: str) -> None:
    found = reason_in(f"{DRAWN_OUT}\n{log}\n  more\n", database="DB")
    assert found is not None
    assert expected in found


def test_a_healthy_log_is_no_reason() -> None:
    assert reason_in(DRAWN_OUT, database="DB") is None


def test_secrets_are_masked_longest_first() -> None:
    assert masked("team:secret and secret", ("secret", "team:secret", "")) == "*** and ***"
