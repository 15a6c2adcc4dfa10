"""Whoever reaches Prefect can change what a deployment runs; what is served here starts its own code or nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from faults.tiny_project import TinyProject
from prefect.client.schemas.objects import FlowRun
from served_project import ServedProject

from flows.servers.local import ServerSettings, local_servers

pytestmark = [pytest.mark.slow, pytest.mark.stages]

DEPLOYMENT = "filter-dataset"
EVIL = "evil.txt"
STEP = "prefect.deployments.steps.run_shell_script"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[ServedProject]:
    folder = TinyProject.make(tmp_path_factory.mktemp("changed") / "project", project).folder
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(folder / EVIL)!r}).touch()\n")
    with local_servers(ServerSettings(state_dir=folder / "outputs/.servers"), say=lambda text: None) as servers:
        served = ServedProject(folder, servers)
        try:
            served.serve()
            yield served
        finally:
            served.kill_what_is_left()


def started_after(served: ServedProject, change: dict[str, Any]) -> UUID:
    """A run of the deployment, as sent off after somebody changed it."""
    found = served.client.read_deployment_by_name(f"{DEPLOYMENT}/{DEPLOYMENT}")
    served.client.request("PATCH", "/deployments/{id}", path_params={"id": found.id}, json=change)  # type: ignore[arg-type]
    body = {"parameters": {"start_from": "tiny", "save_as": "changed"}, "state": {"type": "SCHEDULED"}}
    answer = served.post(f"/deployments/{found.id}/create_flow_run", body)
    assert answer.status_code == 201, answer.text
    return UUID(answer.json()["id"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pull_steps": [{STEP: {"script": f"touch {EVIL}"}}]}, f"pull_steps is [{{'{STEP}'"),
        (
            {"entrypoint": "evil.py:anything", "pull_steps": []},
            "entrypoint is 'evil.py:anything', was 'flows.served.filter_dataset'",
        ),
        (
            {"entrypoint": "flows.served.filter_dataset", "enforce_parameter_schema": False},
            "enforce_parameter_schema is False, was True",
        ),
        (
            {"enforce_parameter_schema": True, "job_variables": {"env": {"PYTHONSTARTUP": "evil.py"}}},
            "job_variables is {'env': {'PYTHONSTARTUP': 'evil.py'}}, was ",
        ),
    ],
    ids=["pull steps", "entrypoint", "schema", "environment"],
)
def test_a_run_of_a_changed_deployment_is_refused_with_what_differs(
    served: ServedProject, change: dict[str, Any], told: str
) -> None:
    run = started_after(served, change)
    assert served.ended(run) == "Failed"
    assert served.message(run).startswith(
        f"Refused: the deployment `{DEPLOYMENT}` is not as `rlhf serve` registered it: "
    )
    assert told in served.message(run)
    assert served.message(run) in served.said
    assert not (served.folder / EVIL).exists()


def test_a_change_between_the_look_and_the_start_changes_nothing(served: ServedProject) -> None:
    """A run that is retried, or whose hooks are called, is started from what is pinned here."""
    served.end()
    served.serve()
    assert (
        served.client.read_deployment_by_name(f"{DEPLOYMENT}/{DEPLOYMENT}").entrypoint == "flows.served.filter_dataset"
    )
    run = served.start(DEPLOYMENT, start_from="tiny", save_as="again", sample_limit=600)
    process = served.wait_for(lambda: _environment(served, run), what="the run's process")
    assert process["PREFECT__FLOW_ENTRYPOINT"] == "flows.served.filter_dataset"
    assert served.ended(run) == "Completed", served.message(run)
    ran: FlowRun = served.run(run)
    assert "run:again" in ran.tags


def _environment(served: ServedProject, run: UUID) -> dict[str, str]:
    for process in served.processes("prefect.engine"):
        environment = process.environ()
        if environment.get("PREFECT__FLOW_RUN_ID") == str(run):
            return environment
    return {}
