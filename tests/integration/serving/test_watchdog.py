"""A run whose process died without a word does not stay Running: the server notices that its heart stopped."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from faults.mortal_server import Prefect
from faults.tiny_project import wait_for
from prefect import flow
from prefect.client.orchestration import PrefectClient, SyncPrefectClient
from prefect.states import AwaitingRetry, Completed, Running, Suspended

from flows.serving.deployments import WATCHDOG, install_watchdog

pytestmark = pytest.mark.slow

_SHORTEST_S = 10  # that Prefect takes


@flow(name="watched")
def watched() -> None:
    """Only its name is needed."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    prefect = Prefect(tmp_path_factory.mktemp("prefect"))
    try:
        prefect.start()
        yield prefect
    finally:
        prefect.stop()


def install(server: Prefect) -> None:
    async def go() -> None:
        async with PrefectClient(server.api_url) as client:
            await install_watchdog(client, ["watched"], silent_for_s=_SHORTEST_S)

    asyncio.run(go())


def beat(client: SyncPrefectClient, run: UUID, flow_id: UUID) -> None:
    """What Prefect's engine sends every half minute."""
    related = {
        "prefect.resource.id": f"prefect.flow.{flow_id}",
        "prefect.resource.role": "flow",
        "prefect.resource.name": "watched",
    }
    event = {
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": "prefect.flow-run.heartbeat",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run}", "prefect.resource.name": "run"},
        "related": [related],
    }
    client.request("POST", "/events", json=[event])


def was_judged(client: SyncPrefectClient, run: UUID, state: str) -> bool:
    """Whether the watchdog reached for that run, and changed its state or was refused by the server."""
    if client.read_flow_run(run).state_name != state:
        return True
    wanted = {"event": {"name": ["prefect.automation.action.failed"]}}
    events = client.request("POST", "/events/filter", json={"filter": wanted}).json()["events"]
    return any(f"prefect.flow-run.{run}" in str(event["related"]) for event in events)


def test_a_silent_run_is_crashed_and_one_that_need_not_beat_any_more_is_left_alone(
    server: Prefect, tmp_path: Path
) -> None:
    install(server)
    install(server)
    with server.client as client:
        assert len(client.read_automations_by_name(WATCHDOG)) == 1
        deployment = client.create_deployment(client.create_flow(watched), name="watched")
        silent = client.create_flow_run_from_deployment(deployment, state=Running())
        suspended, ended = (client.create_flow_run_from_deployment(deployment, state=Running()) for _ in range(2))
        assert client.set_flow_run_state(suspended.id, Suspended(timeout_seconds=600)).status.value == "ACCEPT"
        client.set_flow_run_state(ended.id, Completed())
        for run in (silent, suspended, ended):  # the last two beats come late
            beat(client, run.id, run.flow_id)

        wait_for(lambda: client.read_flow_run(silent.id).state_name == "Crashed", what="the crash", timeout_s=90)
        state = client.read_flow_run(silent.id).state
        assert state is not None
        assert "Retry, or the same command, goes on from the last good step" in (state.message or "")
        for run, name in ((suspended, "Suspended"), (ended, "Completed")):
            wait_for(
                lambda run=run, name=name: was_judged(client, run.id, name), what=f"a word about {name}", timeout_s=90
            )
            assert [state.name for state in client.read_flow_run_states(run.id)] == ["Running", name]
        assert client.resume_flow_run(suspended.id).status.value == "ACCEPT"
        assert client.set_flow_run_state(silent.id, AwaitingRetry()).status.value == "ACCEPT"
