"""The schedule of retrainings that `rlhf serve --retrain … --cron …` sets: one, however often it is set."""

from dataclasses import dataclass

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule

_DEPLOYMENT = "rlhf-retrain/rlhf-retrain"
# Tells this schedule from those that people make on the deployment's page.
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
    """See that the server has this schedule; the one that was set here before is replaced, others stay.

    Raises:
        Exception: whatever the server or Prefect's client says against it.
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
