"""Deployments are found by module and name: in `rlhf serve`, and in prefect.yaml for work pools."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint

from flows.serving.deployments import ENTRYPOINTS, make_deployments, served_flows


@pytest.fixture(autouse=True)
def _in_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


@pytest.fixture
def written(project: Path) -> list[dict[str, Any]]:
    """The deployments of prefect.yaml."""
    content = yaml.safe_load((project / "prefect.yaml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = content["deployments"]
    return found


def test_a_deployment_is_called_as_its_flow_and_found_by_its_module() -> None:
    made = make_deployments(served_flows())
    assert [item.entrypoint for item in made] == list(ENTRYPOINTS)
    assert [item.name for item in made] == [item.flow_name for item in made]
    assert len({item.name for item in made}) == len(made)
    for item in made:
        assert item.enforce_parameter_schema
        assert item.description
        assert load_flow_from_entrypoint(item.entrypoint).name == item.name


def test_prefect_yaml_offers_the_same_as_rlhf_serve(written: list[dict[str, Any]]) -> None:
    assert [item["entrypoint"] for item in written] == list(ENTRYPOINTS)
    for item in written:
        assert load_flow_from_entrypoint(item["entrypoint"]).name == item["name"]
        assert item["enforce_parameter_schema"]
        assert item["work_pool"]["job_variables"]["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"


def test_the_forms_offer_the_run_configurations_of_the_folder_that_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("runs/mine.yaml", "runs/.hidden.yaml", "arms/ours.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setenv("RLHF_RUN_CONFIGS", str(tmp_path / "runs"))
    for item in make_deployments(served_flows()):
        schema = item._parameter_openapi_schema
        assert schema.properties["start_from"]["enum"] == (["ours"] if item.name == "rlhf-arms" else ["mine"])
