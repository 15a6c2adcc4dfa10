"""MLflow's registry shows what the champion's file says, whatever was lost, moved or told twice."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.champions.book import ChampionBook, promoted_by_hand
from tasks.champions.registry import Registry
from tests.unit.factories.champion_factory import make_book

pytestmark = pytest.mark.slow

MODEL = "demo-reward-model"


def _client(uri: str) -> MlflowClient:
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _shown(uri: str) -> dict[str, str]:
    """Alias → our version number."""
    client = _client(uri)
    aliases = client.get_registered_model(MODEL).aliases
    return {
        alias: client.get_model_version(MODEL, str(number)).tags["rlhf.version"] for alias, number in aliases.items()
    }


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> ChampionBook:
    return make_book(tmp_path_factory.mktemp("store"), num_versions=3)


def test_a_registry_that_knows_nothing_gets_every_version_once(mlflow_uri: str, book: ChampionBook) -> None:
    registry = Registry(mlflow_uri, experiment="demo")
    assert [registry.reconcile(book, book.read()) for _ in range(2)] == ["", ""]
    client = _client(mlflow_uri)
    versions = client.search_model_versions(f"name = '{MODEL}'")
    assert sorted(item.tags["rlhf.version"] for item in versions) == ["1", "2", "3"]
    assert _shown(mlflow_uri) == {"champion": "2", "challenger": "3"}
    champion = client.get_model_version_by_alias(MODEL, "champion")
    assert champion.tags["rlhf.reason"] == "version 2 is better"
    assert champion.tags["rlhf.dataset"].startswith("org/data@main (hub:")
    assert Path(champion.tags["rlhf.artifact"], "merged", "model.safetensors").is_file()


def test_an_alias_moved_in_mlflow_is_put_back_and_one_moved_by_us_is_followed(
    mlflow_uri: str, book: ChampionBook
) -> None:
    registry, client = Registry(mlflow_uri, experiment="demo"), _client(mlflow_uri)
    registry.reconcile(book, book.read())
    other = next(item for item in client.search_model_versions(f"name = '{MODEL}'") if item.tags["rlhf.version"] == "1")
    client.set_registered_model_alias(MODEL, "champion", other.version)
    registry.reconcile(book, book.read())
    assert _shown(mlflow_uri)["champion"] == "2"
    registry.reconcile(book, book.update(lambda found: promoted_by_hand(found, 3, by="Ada", reason="red-teaming")))
    assert _shown(mlflow_uri) == {"champion": "3"}
    assert client.get_model_version_by_alias(MODEL, "champion").tags["rlhf.by"] == "Ada"


def test_a_database_without_a_server_serves_as_well(
    book: ChampionBook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MLflow puts the artifacts of a bare database into the present folder
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert Registry(uri, experiment="demo").reconcile(book, book.read()) == ""
    assert "champion" in _shown(uri)


def test_a_registry_that_is_away_costs_seconds_and_is_told_where_the_truth_stands(book: ChampionBook) -> None:
    problem = Registry("http://127.0.0.1:9", experiment="demo").reconcile(book, book.read())
    assert "could not be updated" in problem and str(book.path) in problem
