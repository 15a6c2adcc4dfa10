"""Notices that somebody cancelled or deleted a flow run that still waits for another, before its pipeline is open."""

from collections.abc import Callable

from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext

from tasks.cancel_watch import CancelWatch, never
from tasks.prefect_api import PrefectApi


def watch_for_cancel() -> tuple[Callable[[], bool], Callable[[], None]]:
    """Whether the present flow run was cancelled or deleted, and how to stop asking; outside a flow run nobody can."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return never, lambda: None
    flow_run_id, api = str(context.flow_run.id), PrefectApi()

    def state() -> StateType | None:
        flow_run = api.flow_run(flow_run_id)
        return None if flow_run is None else flow_run.state_type

    watch = CancelWatch(state, had_run=lambda: api.had_flow_run(flow_run_id))
    return watch.should_stop, watch.close
