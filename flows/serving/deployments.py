"""What `rlhf serve` installs in Prefect: the deployments, and the automations that find dead runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pkgutil import resolve_name
from typing import Any

from prefect import Flow
from prefect.automations import AutomationCore
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.types.entrypoint import EntrypointType
from prefect.utilities.callables import ParameterSchema

from tasks.prefect_sync.cancellation import GOES_ON

_DEPLOYMENT = "rlhf-retrain/rlhf-retrain"
# Distinguishes this schedule from those that users make on the deployment's page.
_SLUG = "rlhf-serve"
_TIMEZONE = "UTC"


@dataclass(frozen=True)
class RetrainSchedule:
    """Retrain the run configuration of that name whenever the cron expression says, in UTC."""

    start_from: str
    cron: str

    def __str__(self) -> str:
        return f"rlhf-retrain of `{self.start_from}` at `{self.cron}` ({_TIMEZONE})"


def set_retrain_schedule(wanted: RetrainSchedule) -> None:
    """Set this schedule on the server. It replaces the one that was set here before; others stay.

    Raises:
        Exception: the server or Prefect's client refuses it.
    """
    schedule = CronSchedule(cron=wanted.cron, timezone=_TIMEZONE)
    parameters = {"start_from": wanted.start_from}
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(_DEPLOYMENT)
        for found in deployment.schedules:
            if found.slug == _SLUG:
                client.delete_deployment_schedule(deployment.id, found.id)
        made = DeploymentScheduleCreate(schedule=schedule, parameters=parameters, slug=_SLUG)
        client.create_deployment_schedules(deployment.id, [made])


# By module, so that Prefect finds the code wherever the project is installed.
ENTRYPOINTS = (
    "flows.served.rlhf_pipeline",
    "flows.served.filter_dataset",
    "flows.served.train_reward_model",
    "flows.served.certify",
    "flows.served.train_policy",
    "flows.served.rlhf_retrain",
    "flows.served.rlhf_arms",
)
WATCHDOG = "rlhf: a run that gives no sign of life has crashed"
_SECOND_STEP = "rlhf: a run that was found silent has crashed"
HEARTBEAT_EVERY_S = 30
# Three heartbeats: one or two get lost when a server restarts.
_SILENT_FOR_S = 3 * HEARTBEAT_EVERY_S
_RUN_EVENT = "prefect.flow-run."
_HEARTBEAT = f"{_RUN_EVENT}heartbeat"
_ANY_RUN = {"prefect.resource.id": "prefect.flow-run.*"}
_SILENT = "NoSignOfLife"
_TAG = "rlhf"


class _ClosedSchema(ParameterSchema):
    """The schema of a form that has these fields and no others."""

    additionalProperties: bool  # noqa: N815 - JSON schema's name


def served_flows() -> tuple[Flow[..., Any], ...]:
    """The flows of the deployments."""
    return tuple(resolve_name(entrypoint) for entrypoint in ENTRYPOINTS)


def make_deployments(flows: Sequence[Flow[..., Any]]) -> list[RunnerDeployment]:
    """A deployment for each flow, of the same name; its form offers the run configurations that exist now."""
    made = []
    for flow in flows:
        deployment = RunnerDeployment.from_flow(
            flow,
            name=flow.name,
            description=flow.description,
            tags=[_TAG],
            enforce_parameter_schema=True,
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        # The server refuses unknown fields; else the run would fail, or a misspelt field would have no effect.
        schema = deployment._parameter_openapi_schema.model_dump(exclude_unset=True)
        deployment._parameter_openapi_schema = _ClosedSchema.model_validate(schema | {"additionalProperties": False})
        # Set, to take a deployment out of a work pool that it was in before.
        deployment.work_pool_name = deployment.work_queue_name = None
        # Not set, to keep what a user chose on the deployment's page.
        deployment.model_fields_set.difference_update({"schedules", "paused"})
        made.append(deployment)
    return made


async def install_watchdog(
    client: PrefectClient, flow_names: Sequence[str], *, silent_for_s: int = _SILENT_FOR_S
) -> None:
    """Make the server set a run without heartbeats to Crashed. Safe to repeat.

    No automation can check a run's state, and a suspended or ended run must not become Crashed because of a heartbeat
    that came after its last state. But the server pauses only Running runs. So two automations are needed: the first
    one sets a silent run to a paused state with a special name, the second one sets runs in that state to Crashed.

    A run whose process lives sets its state back (`tasks.prefect_sync.link`).
    """
    flows = {"prefect.resource.role": "flow", "prefect.resource.name": list(flow_names)}
    trigger = partial(
        EventTrigger,
        match=ResourceSpecification(_ANY_RUN),
        match_related=ResourceSpecification(flows),
        for_each={"prefect.resource.id"},
        threshold=1,
    )
    for wanted in (_finds_silent_runs(trigger, silent_for_s), _ends_silent_runs(trigger, silent_for_s)):
        before = await client.read_automations_by_name(wanted.name)
        for doubled in before[1:]:
            await client.delete_automation(doubled.id)
        if before:  # if a user switched it off, it stays off
            await client.update_automation(before[0].id, wanted.model_copy(update={"enabled": before[0].enabled}))
        else:
            await client.create_automation(wanted)


def _finds_silent_runs(trigger: "partial[EventTrigger]", silent_for_s: int) -> AutomationCore:
    return AutomationCore(
        name=WATCHDOG,
        description=f"Installed by `rlhf serve`. A run sends a heartbeat every {HEARTBEAT_EVERY_S} s; after "
        f"{silent_for_s} s without one, its process is gone. Needs `{_SECOND_STEP}`.",
        trigger=trigger(
            posture=Posture.Proactive,
            after={_HEARTBEAT},
            # Also every change of state: a run that has ended, or is suspended, sends no more heartbeats.
            expect={f"{_RUN_EVENT}*"},
            within=timedelta(seconds=silent_for_s),
        ),
        actions=[
            ChangeFlowRunState(state=StateType.PAUSED, name=_SILENT, message=f"No heartbeat for {silent_for_s} s.")
        ],
    )


def _ends_silent_runs(trigger: "partial[EventTrigger]", silent_for_s: int) -> AutomationCore:
    return AutomationCore(
        name=_SECOND_STEP,
        description=f"Installed by `rlhf serve`. The second step of `{WATCHDOG}`.",
        trigger=trigger(
            posture=Posture.Reactive,
            expect={f"{_RUN_EVENT}{_SILENT}"},
            within=timedelta(0),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name="Crashed",
                message=f"No heartbeat for {silent_for_s} s: its process is gone. {GOES_ON}",
            )
        ],
    )
