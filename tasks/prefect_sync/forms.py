"""Forms with which Prefect asks a person: a suspended flow run, resumed with the answer.

The run's process ends while it waits. After the answer Prefect starts the run again; its stages find their artifacts.
"""

import logging
import math
from http import HTTPStatus
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, FlowRunInput
from prefect.exceptions import PrefectHTTPStatusError
from prefect.flow_runs import suspend_flow_run
from prefect.input import Keyset, RunInput, keyset_from_paused_state
from prefect.states import Suspended

logger = logging.getLogger(__name__)

_MAX_INPUTS = 200
_SCHEMA = "-schema"
RESPONSE = "-response"
NO_ANSWER = "Prefect treats the question as answered, but has no answer."


class Form(RunInput):
    """A form that is saved before the run is suspended, so that a suspended run always has one."""

    @classmethod
    def save(cls, keyset: Keyset, flow_run_id: UUID | None = None) -> None:
        """Save the form with the run. Once the run is suspended, Prefect does so again, and finds it there."""
        try:
            super().save(keyset, flow_run_id=flow_run_id)
        except PrefectHTTPStatusError as error:
            if error.response.status_code != HTTPStatus.CONFLICT:
                raise


def can_be_suspended(flow_run: FlowRun | None) -> bool:
    """Whether Prefect can start the run again after an answer: it needs a deployment, and no parent."""
    return flow_run is not None and flow_run.deployment_id is not None and flow_run.parent_task_run_id is None


def form_inputs(flow_run_id: str, prefix: str) -> list[FlowRunInput]:
    """Return the forms and answers of the run whose question has that prefix, the oldest first."""
    with get_client(sync_client=True) as client:
        found = client.filter_flow_run_input(
            flow_run_id=UUID(flow_run_id), key_prefix=f"suspended-{prefix}", limit=_MAX_INPUTS, exclude_keys=set()
        )
    return sorted(found, key=lambda item: str(item.created))


def number_of_next_form(flow_run_id: str, prefix: str) -> int:
    """Return which form of the question comes next; Prefect loses its own count when a run is retried."""
    return sum(item.key.endswith(_SCHEMA) for item in form_inputs(flow_run_id, prefix)) + 1


def suspend_with(form: type[Form], *, flow_run_id: str, pause: str, left_s: float | None) -> str:
    """Suspend the present run until a person fills in the form. Return why that failed.

    Args:
        pause: the question's prefix with the form's number; Prefect's keys allow no underscore.
        left_s: seconds until the question is closed; None: never.

    Raises:
        Pause: the run is suspended; Prefect's engine takes over.
    """
    try:
        form.save(keyset_from_paused_state(Suspended(pause_key=pause)), UUID(flow_run_id))
        suspend_flow_run(wait_for_input=form, key=pause, timeout=None if left_s is None else max(1, math.ceil(left_s)))
    except Exception as error:
        logger.warning("The run could not be suspended: %s", error)
        return f"Prefect could not suspend the run ({type(error).__name__}: {error})."
    return NO_ANSWER


def forget_input(flow_run_id: str, key: str) -> None:
    """Delete an answer that was taken; a server that refuses keeps it."""
    try:
        with get_client(sync_client=True) as client:
            client.delete_flow_run_input(flow_run_id=UUID(flow_run_id), key=key)
    except Exception as error:
        logger.warning("An answer stays in Prefect: %s", error)
