"""Start served runs only from the code that this process registered, whatever Prefect says later.

A user who reaches a Prefect server can give a deployment another entrypoint or pull steps. Prefect's runner would
execute them as the serving user. So the code of a flow run is pinned here, and a run of a changed deployment is
refused, with the differences.
"""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.runner import Runner
from prefect.runner._starter_engine import EngineCommandStarter
from prefect.states import Failed

Say = Callable[[str], None]

# Fields that decide which code a run executes, where, and with which parameters.
_COMPARED = (
    "entrypoint",
    "path",
    "pull_steps",
    "job_variables",
    "parameter_openapi_schema",
    "enforce_parameter_schema",
    "work_pool_name",
    "storage_document_id",
    "infrastructure_document_id",
)
_SHOWN_CHARACTERS = 120


class DeploymentGuard:
    """Starts only what this process registered with Prefect.

    Args:
        flows: the flows of the deployments, of the same names.
        heartbeat_s: how often a started run gives a sign of life.
    """

    def __init__(self, flows: Sequence[Flow[..., Any]], *, heartbeat_s: int, say: Say) -> None:
        self._flows = {flow.name: flow for flow in flows}
        self._heartbeat_s = heartbeat_s
        self._say = say
        self._registered: dict[UUID, DeploymentResponse] = {}
        self._entrypoints: dict[UUID, str] = {}

    async def register(self, runner: Runner, deployment: RunnerDeployment, client: PrefectClient) -> None:
        """Register a deployment with the server, and remember it as the server has it now."""
        number = await runner.aadd_deployment(deployment)
        self._registered[number] = await client.read_deployment(number)
        self._entrypoints[number] = str(deployment.entrypoint)
        # The runner then finds the hooks of a flow without loading the code that the server names.
        runner._deployment_registry.register_flow(number, self._flows[deployment.name])

    def watch(self, runner: Runner) -> None:
        """Make this runner start only unchanged deployments, from the registered code."""
        poller = runner._scheduled_run_poller
        due = poller._get_scheduled_flow_runs

        async def trusted() -> list[FlowRun]:
            return [run for run in await due() if await self._is_trusted(run, runner._client)]

        def starter(flow_run: FlowRun) -> EngineCommandStarter:
            number = flow_run.deployment_id
            if number is None or number not in self._entrypoints:
                raise RuntimeError(f"Flow run {flow_run.id} belongs to no deployment of this process.")
            return EngineCommandStarter(
                tmp_dir=runner._tmp_dir,
                entrypoint=self._entrypoints[number],
                deployment_name=self._registered[number].name,
                heartbeat_seconds=self._heartbeat_s,
                control_channel=runner._control_channel,
            )

        poller._get_scheduled_flow_runs = trusted  # type: ignore[method-assign]
        poller._resolve_starter = starter

    async def _is_trusted(self, flow_run: FlowRun, client: PrefectClient) -> bool:
        registered = None if flow_run.deployment_id is None else self._registered.get(flow_run.deployment_id)
        if registered is None:
            return False
        try:
            found = await client.read_deployment(registered.id)
        except ObjectNotFound:  # deleted, with its runs
            return False
        problem = difference(registered, found)
        if not problem:
            return True
        text = (
            f"Refused: the deployment `{registered.name}` is not as `rlhf serve` registered it: {problem}. A user "
            "changed it in Prefect, or another `rlhf serve` registered its own. Nothing was started. Start "
            "`rlhf serve` again to register it anew."
        )
        self._say(f"{flow_run.name}: {text}")
        await client.set_flow_run_state(flow_run.id, Failed(message=text), force=True)
        return False


def difference(registered: DeploymentResponse, found: DeploymentResponse) -> str:
    """Differences of a deployment from the registered one; empty if there are none.

    Example: "entrypoint is 'evil.run', was 'flows.served.certify'".
    """
    lines = []
    for name in _COMPARED:
        wanted, seen = getattr(registered, name), getattr(found, name)
        if (wanted or None) != (seen or None):
            what = (
                "is another one" if name == "parameter_openapi_schema" else f"is {_short(seen)}, was {_short(wanted)}"
            )
            lines.append(f"{name} {what}")
    return "; ".join(lines)


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"
