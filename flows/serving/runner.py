"""Serve the deployments in this process: Prefect's runner in a thread, each run in its own process.

Prefect's own `serve` ends every run if its server is away for half a minute, and leaves a run Running for ever if it is
ended itself. This one waits for a lost server, and ends its runs in good order before it ends.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psutil
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.deployments.runner import RunnerDeployment
from prefect.runner import Runner

from flows.serving.deployment_guard import DeploymentGuard
from flows.serving.deployments import HEARTBEAT_EVERY_S, install_watchdog
from tasks.prefect_sync.api import PrefectApi, PrefectAwayError
from tasks.prefect_sync.cancellation import GOES_ON
from tasks.prefect_sync.state import settle_dead_runs, settle_ended_runs
from tasks.prefect_sync.unreadable_runs import unreadable_text

logger = logging.getLogger(__name__)

Say = Callable[[str], None]

_POLL_EVERY_S = 5.0
_SETTLE_EVERY_S = 60.0
_TELL_AGAIN_AFTER_S = 15.0
_BEGUN_WITHIN_S = 300.0
# Then the run is shown as ended; a stage process that needs longer goes on saving its state alone.
_ENDING_LIMIT_S = 60.0
_FLOW_RUN_ID = "PREFECT__FLOW_RUN_ID"


class Serving:
    """The deployments, served from `start` to `end`.

    Args:
        limit: runs at a time; more wait.
        flows: those of the deployments.
        flow_names: flows whose runs are checked, those of the deployments and others that run here.
        say_of_runs: gets findings about runs, the same ones repeatedly; prints each once.
    """

    def __init__(
        self,
        deployments: Sequence[RunnerDeployment],
        *,
        flows: Sequence[Flow[..., Any]],
        limit: int,
        flow_names: Sequence[str],
        say: Say,
        say_of_runs: Say,
    ) -> None:
        self._deployments = tuple(deployments)
        self._flow_names = tuple(flow_names)
        self._say = say
        self._say_of_runs = say_of_runs
        self._runner = Runner(
            name="rlhf-serve",
            limit=limit,
            query_seconds=_POLL_EVERY_S,
            heartbeat_seconds=HEARTBEAT_EVERY_S,
            pause_on_shutdown=False,
        )
        self._guard = DeploymentGuard(flows, heartbeat_s=HEARTBEAT_EVERY_S, say=say)
        self._is_ready = threading.Event()
        self._is_ending = threading.Event()
        self._is_away = False
        self._ended: set[UUID] = set()
        self._error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        # Outside the main thread the runner does not handle signals.
        self._thread = threading.Thread(target=self._work, name="serving", daemon=True)

    def start(self) -> None:
        """Register the deployments and serve them from now on.

        Raises:
            Exception: the server or Prefect's client refuses it.
        """
        self._thread.start()
        self._is_ready.wait()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise what ended the serving, if anything did."""
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End every run in good order, and then the serving. Each run can go on by Retry."""
        self._is_ending.set()
        ended = end_runs(say=self._say)
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=_ENDING_LIMIT_S)
        for flow_run_id in ended:
            _see_that_it_ended(flow_run_id)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._serve())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # `raise_error` raises it in the thread that can act on it
            self._error = error
        finally:
            self._is_ready.set()

    async def _serve(self) -> None:
        async with get_client() as client:
            for deployment in self._deployments:
                await self._guard.register(self._runner, deployment, client)
            await install_watchdog(client, self._flow_names)
        async with self._runner:
            self._guard.watch(self._runner)
            self._is_ready.set()
            settle_at, at_work = time.monotonic() + _SETTLE_EVERY_S, set[UUID]()
            while not self._is_ending.is_set():
                await self._ask_for_runs()
                before, at_work = at_work, {flow_run_id for flow_run_id, _ in _running()}
                if before - at_work:  # the runner reports now how that run ended, but not its tasks
                    self._ended |= before - at_work
                    settle_at = min(settle_at, time.monotonic() + _POLL_EVERY_S)
                if time.monotonic() >= settle_at:
                    self._ended = await asyncio.to_thread(
                        settle, self._flow_names, ended=self._ended, say=self._say_of_runs
                    )
                    settle_at = time.monotonic() + (_TELL_AGAIN_AFTER_S if self._ended else _SETTLE_EVERY_S)
                await asyncio.sleep(_POLL_EVERY_S)
            await asyncio.sleep(_ENDING_LIMIT_S * 2)  # until `end` cancels this: the runs end first

    async def _ask_for_runs(self) -> None:
        """Start due runs. Not by `Runner.start`: it gives up after three failed requests, and kills the runs."""
        try:
            await self._runner._get_and_submit_flow_runs()  # type: ignore[no-untyped-call]
        except Exception as error:
            if await asyncio.to_thread(set_unreadable_aside, say=self._say_of_runs):
                return
            if not self._is_away:
                self._say(f"Prefect does not answer ({type(error).__name__}: {error}). Started runs go on; waiting.")
            self._is_away = True
        else:
            if self._is_away:
                self._say("Prefect answers again.")
            self._is_away = False


def set_unreadable_aside(*, say: Say) -> bool:
    """Set scheduled runs that the server cannot hand out to Failed; return whether there were any.

    One of them would keep every other run from starting.
    """
    api = PrefectApi()
    state: State[None] = State(type=StateType.FAILED, name="Failed", message="Prefect cannot hand it out: delete it.")
    try:
        found = api.scheduled_unreadable()
        for flow_run_id in found:
            api.set_flow_run_state(str(flow_run_id), state)
            say(f"{unreadable_text(flow_run_id)}. It was not started.")
    except PrefectAwayError:
        return False
    return bool(found)


def settle(flow_names: Sequence[str], *, ended: Iterable[UUID] = (), say: Say) -> set[UUID]:
    """Set runs of this host to Crashed if their process died, or if a dead `rlhf serve` never began them.

    Name runs that break the server's lists.

    Args:
        flow_names: flows whose runs are checked.
        ended: runs whose process has ended; Prefect is told what the process could not tell any more.
        say: gets lines for the user.

    Returns:
        Those of `ended` with something left to tell.
    """
    api, left = PrefectApi(), set(ended)
    try:
        lines, left = settle_ended_runs(api, left)
        for line in lines:
            say(line)
        for flow_run_id in api.newest_unreadable():
            say(unreadable_text(flow_run_id))
        for name in flow_names:
            for line in settle_dead_runs(api, flow_name=name):
                say(line)
            for flow_run in api.unfinished_flow_runs(name).runs:
                if _was_never_begun(flow_run):
                    _set_crashed(api, flow_run.id, f"The process that served it ended before it began. {GOES_ON}")
    except PrefectAwayError as error:
        logger.warning("Prefect was not asked for runs that died: %s", error)
    return left


def end_runs(*, say: Say) -> list[UUID]:
    """End every flow run of this process, kill those that do not end in time, and return all of them."""
    runs = dict(_running())
    for flow_run_id, process in runs.items():
        say(f"Ending flow run {flow_run_id}, after its stage has saved its state.")
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(list(runs.values()), timeout=_ENDING_LIMIT_S)
    for process in alive:
        say(f"Process {process.pid} of a flow run did not end within {_ENDING_LIMIT_S:g} s and is killed.")
        with contextlib.suppress(psutil.Error):
            process.kill()
    return list(runs)


def _running() -> Iterator[tuple[UUID, psutil.Process]]:
    """The flow runs that are children of this process."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error, ValueError):
            named = child.environ().get(_FLOW_RUN_ID)
            if named and child.status() != psutil.STATUS_ZOMBIE:
                yield UUID(named), child


def _was_never_begun(flow_run: FlowRun) -> bool:
    """Whether a run waits for a process that nothing will start; runs of work pools do not count."""
    is_served = flow_run.deployment_id is not None and flow_run.work_pool_name is None
    state = flow_run.state
    if not is_served or state is None or not state.is_pending():
        return False
    return (datetime.now(UTC) - state.timestamp).total_seconds() > _BEGUN_WITHIN_S


def _see_that_it_ended(flow_run_id: UUID) -> None:
    """Set a run to Crashed if it was killed, or ended before it could say so."""
    api = PrefectApi()
    try:
        flow_run = api.flow_run(str(flow_run_id))
        state = None if flow_run is None else flow_run.state
        if state is not None and (state.is_pending() or state.is_running() or state.is_cancelling()):
            _set_crashed(api, flow_run_id, f"`rlhf serve` ended. {GOES_ON}")
    except PrefectAwayError as error:
        logger.warning("Prefect was not told that flow run %s ended: %s", flow_run_id, error)


def _set_crashed(api: PrefectApi, flow_run_id: UUID, message: str) -> None:
    state: State[None] = State(type=StateType.CRASHED, name="Crashed", message=message)
    api.set_flow_run_state(str(flow_run_id), state)
