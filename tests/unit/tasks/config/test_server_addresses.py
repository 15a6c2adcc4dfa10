"""A mistyped address of a server is found before anything starts, not by a stage that cannot report."""

from pathlib import Path

import pytest

from tasks.config.errors import InvalidConfigError
from tasks.config.loading import load_run_config
from tests.unit.factories.run_files import write_run


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("mlflow_uri", "localhost:5000", "`localhost:5000` is no http(s) address and no database. Give a server, such"),
        ("mlflow_uri", "./mlruns", "`./mlruns` is no http(s) address and no database."),
        ("mlflow_uri", "http://", "`http://` names no host."),
        ("mlflow_uri", "http://host:0", "`http://host:0` names port 0."),
        ("mlflow_uri", "http://host:99999", "`http://host:99999` is no address (Port out of range 0-65535)."),
        ("mlflow_uri", "postgresql://me:secret@host/db", "holds a user or password"),
        ("prefect_api_url", "sqlite:///x.db", "`sqlite:///x.db` is no http(s) address. Give the address of its API"),
        ("prefect_api_url", "http://[::1", "`http://[::1` is no address (Invalid IPv6 URL)."),
    ],
)
def test_what_is_no_address_is_refused_with_what_one_looks_like(
    tmp_path: Path, key: str, value: str, expected: str
) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_run_config(write_run(tmp_path, tracking={key: value}))
    (mistake,) = caught.value.mistakes
    assert mistake.key == f"tracking.{key}"
    assert mistake.text.startswith(expected)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mlflow_uri", "https://host"),
        ("mlflow_uri", "sqlite:////data/me@home/mlflow.db"),
        ("mlflow_uri", "postgresql+psycopg2://host/db"),
        ("mlflow_uri", "databricks"),
        ("prefect_api_url", "http://[::1]:4200/api"),
    ],
)
def test_servers_and_the_databases_of_mlflow_are_addresses(tmp_path: Path, key: str, value: str) -> None:
    loaded = load_run_config(write_run(tmp_path, tracking={key: value}))
    assert getattr(loaded.config.tracking, key) == value
