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
from prefect.states import Paused, Running

from flows.deployments import WATCHDOG, install_watchdog

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


def test_a_silent_run_is_crashed_and_a_suspended_one_is_left_alone(server: Prefect, tmp_path: Path) -> None:
    install(server)
    install(server)
    with server.client as client:
        assert len(client.read_automations_by_name(WATCHDOG)) == 1
        silent, suspended = (client.create_flow_run(watched, state=Running()) for _ in range(2))
        for run in (silent, suspended):
            beat(client, run.id, run.flow_id)
        client.set_flow_run_state(suspended.id, Paused(name="Suspended", timeout_seconds=600), force=True)

        wait_for(lambda: client.read_flow_run(silent.id).state_name == "Crashed", what="the crash", timeout_s=90)
        state = client.read_flow_run(silent.id).state
        assert state is not None
        assert "Retry, or the same command, goes on from the last good step" in (state.message or "")
        assert client.read_flow_run(suspended.id).state_name == "Suspended"
