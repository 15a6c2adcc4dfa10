"""Requests to Prefect's API beside its engine: short waits, few repeats, one kind of error.

The engine repeats each request for a minute and more, and then raises into the flow; a working run must do neither.
"""

import random
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar
from uuid import UUID

from httpx import ReadError, RemoteProtocolError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    ArtifactFilterTaskRunId,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType, TaskRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.types import KeyValueLabels

from tasks.clients.prefect import no_retries
from tasks.prefect_sync.unreadable_runs import FoundRuns, UnreadableError, read_one_by_one

T = TypeVar("T")

_UNFINISHED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_ENDED = [StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED]
# Each of our runs has had them before this request. Heartbeats are left out: the run sends them to any server.
_STATES_OF_A_START = ("Pending", "Running")
_AT_ONCE = 200
# Read every minute, and only if the server fails to list runs.
_PAGES_OF_NEWEST = 5
_PAGES_OF_SCHEDULED = 50
_BUSY = 503
_BROKEN = 500
_DROPPED = (ReadError, RemoteProtocolError)
_PAUSES_WHEN_BUSY_S = (0.2, 0.5, 1.0)


def present_flow_run() -> FlowRun | None:
    """Return the flow run of this process; None outside one."""
    context = FlowRunContext.get()
    return context.flow_run if context else None


class PrefectAwayError(Exception):
    """Prefect's API did not answer in time, failed, or rejected the request."""


class PrefectApi:
    """A client of the API that this process is set to; every method may raise PrefectAwayError.

    Args:
        timeout_s: longest wait for one answer.
    """

    def __init__(self, *, timeout_s: float = 5.0) -> None:
        self._client: SyncPrefectClient = get_client(httpx_settings={"timeout": timeout_s}, sync_client=True)
        # Else a connection that no `with` closes stays open until a garbage collection finds it.
        weakref.finalize(self, self._client.__exit__, None, None, None)

    def __enter__(self) -> Self:
        """Keep the connections during the block, and close them after it."""
        self._client.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connections."""
        self._client.__exit__(*error)

    @property
    def url(self) -> str:
        """The API's address, without a password."""
        return str(self._client.api_url.copy_with(userinfo=b"")).rstrip("/")

    def flow_run(self, flow_run_id: str) -> FlowRun | None:
        """Return the run as the server has it; None if the server has no such run."""
        return self._asked(lambda: self._client.read_flow_run(UUID(flow_run_id)))

    def had_flow_run(self, flow_run_id: str) -> bool:
        """Whether the server's database once had this run; for a run that it does not have now.

        The server keeps an event of each state of a run, also after the run is deleted, for its
        `PREFECT_SERVER_EVENTS_RETENTION_PERIOD`. A new database, and one from before the run, has none.
        """
        begun = {
            "event": {"name": [f"prefect.flow-run.{name}" for name in _STATES_OF_A_START]},
            "resource": {"id": [f"prefect.flow-run.{flow_run_id}"]},
        }
        answer = self._asked(lambda: self._client.request("POST", "/events/filter", json={"filter": begun, "limit": 1}))
        return answer is not None and bool(answer.json()["events"])

    def unfinished_flow_runs(self, flow_name: str) -> FoundRuns:
        """Return all runs of that flow that the server shows as unfinished."""
        flows = FlowFilter(name=FlowFilterName(any_=[flow_name]))
        return self._all_runs(flows, _in_states(_UNFINISHED))

    def ended_with_open_tasks(self, flow_name: str) -> list[FlowRun]:
        """Return the newest 200 ended runs of that flow with a task that the server shows as unfinished."""
        flows = FlowFilter(name=FlowFilterName(any_=[flow_name]))
        open_tasks = TaskRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])
        asked = self._asked(
            lambda: self._client.read_flow_runs(
                flow_filter=flows,
                flow_run_filter=_in_states(_ENDED),
                task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=open_tasks)),
                sort=FlowRunSort.EXPECTED_START_TIME_DESC,
                limit=_AT_ONCE,
            )
        )
        return asked or []

    def newest_unreadable(self) -> tuple[UUID, ...]:
        """Return the unreadable runs of any flow among the newest 1,000; they break the first pages of the list."""
        return self._all_runs(FlowFilter(), FlowRunFilter(), most_pages=_PAGES_OF_NEWEST).unreadable

    def scheduled_unreadable(self) -> tuple[UUID, ...]:
        """Return the scheduled runs of any flow that the server cannot hand out for their start.

        Runs due first come first: each schedule has up to 100 later runs, which would fill the page.
        """
        states, due_first = _in_states([StateType.SCHEDULED]), FlowRunSort.EXPECTED_START_TIME_ASC
        return self._all_runs(FlowFilter(), states, sort=due_first, most_pages=_PAGES_OF_SCHEDULED).unreadable

    def _all_runs(
        self,
        flows: FlowFilter,
        runs: FlowRunFilter,
        *,
        sort: FlowRunSort = FlowRunSort.EXPECTED_START_TIME_DESC,
        most_pages: int | None = None,
    ) -> FoundRuns:
        """Return the runs of the first `most_pages` pages; None means all pages."""
        found = page = self._found_runs(flows, runs, sort=sort)
        num_pages = 1
        while page.count >= _AT_ONCE and (most_pages is None or num_pages < most_pages):
            page = self._found_runs(flows, runs, sort=sort, offset=found.count)
            found = FoundRuns(found.runs + page.runs, found.unreadable + page.unreadable)
            num_pages += 1
        return found

    def _found_runs(self, flows: FlowFilter, runs: FlowRunFilter, *, sort: FlowRunSort, offset: int = 0) -> FoundRuns:
        def listed(only: FlowRunFilter, offset: int = 0) -> list[FlowRun]:
            return self._client.read_flow_runs(
                flow_filter=flows, flow_run_filter=only, limit=_AT_ONCE, offset=offset, sort=sort
            )

        try:
            return FoundRuns(tuple(self._read(lambda: listed(runs, offset)) or ()))
        except UnreadableError:
            asked = {
                "flows": flows.model_dump(mode="json"),
                "flow_runs": runs.model_dump(mode="json"),
                "limit": _AT_ONCE,
                "offset": offset,
                "sort": sort.value,
            }
            # The page draws this as bars: ids and times, without the values that the server cannot write.
            bars = self._asked(lambda: self._client.request("POST", "/ui/flow_runs/history", json=asked).json()) or []
            ids = [UUID(bar["id"]) for bar in bars]
            return read_one_by_one(ids, lambda some: self._read(lambda: listed(_only(some))) or [])

    def _read(self, question: Callable[[], T]) -> T | None:
        """Return the answer to a request.

        Raises:
            UnreadableError: the server fails to write the answer.
        """
        try:
            return self._asked(question)
        except PrefectAwayError as error:
            if isinstance(error.__cause__, PrefectHTTPStatusError) and error.__cause__.response.status_code == _BROKEN:
                raise UnreadableError from error
            if isinstance(error.__cause__, _DROPPED):
                raise UnreadableError from error
            raise

    def task_runs(self, flow_run_id: str) -> list[TaskRun]:
        """Return the tasks of a run as the server has them."""
        only = _only([UUID(flow_run_id)])
        return self._asked(lambda: self._client.read_task_runs(flow_run_filter=only, limit=_AT_ONCE)) or []

    def label_flow_run(self, flow_run_id: str, labels: Mapping[str, str]) -> None:
        """Add labels to a run."""
        values: KeyValueLabels = dict(labels)
        self._asked(lambda: self._client.update_flow_run_labels(UUID(flow_run_id), values))

    def set_flow_run_state(self, flow_run_id: str, state: State[Any]) -> None:
        """Set the state of a run, whatever it was before."""
        self._asked(lambda: self._client.set_flow_run_state(UUID(flow_run_id), state, force=True))

    def set_task_run_state(self, task_run_id: UUID, state: State[Any]) -> None:
        """Set the state of a task run, whatever it was before."""
        self._asked(lambda: self._client.set_task_run_state(task_run_id, state, force=True))

    def record_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Send events; the same event may be sent twice. The server processes them after its answer."""
        self._asked(lambda: self._client.request("POST", "/events", json=list(events)))

    def rename_flow_run(self, flow_run_id: str, name: str) -> None:
        """Rename a run."""
        self._asked(lambda: self._client.update_flow_run(UUID(flow_run_id), name=name))

    def tag_flow_run(self, flow_run_id: str, tags: Iterable[str]) -> None:
        """Add tags to a run; those that it has stay."""
        flow_run = self.flow_run(flow_run_id)
        if flow_run is not None:
            wanted = list(dict.fromkeys((*flow_run.tags, *tags)))
            self._asked(lambda: self._client.update_flow_run(UUID(flow_run_id), tags=wanted))

    def create_artifact(self, artifact: Mapping[str, Any]) -> None:
        """Attach an artifact to the run that it names; it replaces the same task's artifact of the same key."""
        wanted = ArtifactCreate.model_validate(artifact)
        self._asked(lambda: self._show(wanted))

    def _show(self, artifact: ArtifactCreate) -> None:
        shown = self._shown(artifact)
        if shown is None:
            self._client.create_artifact(artifact)
            return
        changed = ArtifactUpdate(data=artifact.data, description=artifact.description)
        # The client's own method is not used: it makes an event of each update, with all data in it.
        self._client.request(
            "PATCH",
            "/artifacts/{id}",
            path_params={"id": shown},
            json=changed.model_dump(mode="json", exclude_unset=True),
        )

    def _shown(self, artifact: ArtifactCreate) -> UUID | None:
        """Return the id of the artifact with that key that the same task, or outside tasks the flow run, has."""
        if artifact.key is None or artifact.flow_run_id is None:
            return None
        task_run_id = artifact.task_run_id
        same = ArtifactFilter(
            key=ArtifactFilterKey(any_=[artifact.key]),
            flow_run_id=ArtifactFilterFlowRunId(any_=[artifact.flow_run_id]),
            task_run_id=ArtifactFilterTaskRunId(any_=[task_run_id]) if task_run_id else None,
        )
        found = self._client.read_artifacts(artifact_filter=same, limit=_AT_ONCE)
        return next((item.id for item in found if item.task_run_id == task_run_id), None)

    def _asked(self, question: Callable[[], T]) -> T | None:
        try:
            with no_retries():
                return self._answer(question)
        except ObjectNotFound:
            return None
        except Exception as error:  # whatever client and server throw, the run goes on
            raise PrefectAwayError(f"{type(error).__name__}: {error}".rstrip(": ")) from error

    def _answer(self, question: Callable[[], T]) -> T:
        """Return the answer; repeat the request while another write locks the server's SQLite file.

        Also repeat it after a dropped connection: the server drops one after an answer that it failed to write.
        """
        for pause_s in _PAUSES_WHEN_BUSY_S:
            try:
                return question()
            except PrefectHTTPStatusError as error:
                if error.response.status_code != _BUSY:
                    raise
            except _DROPPED:
                pass
            time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - so that two clients do not collide again
        return question()


def _only(ids: Sequence[UUID]) -> FlowRunFilter:
    return FlowRunFilter(id=FlowRunFilterId(any_=list(ids)))


def _in_states(states: list[StateType]) -> FlowRunFilter:
    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states)))
