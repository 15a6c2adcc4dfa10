"""Take the task events of Prefect's task engine, keep them in the ledger, and send them to the server.

Prefect's own client sends each change over a websocket, tries eleven times if the server is gone, and loses what was
not sent when the process ends.
"""

import queue
import threading
import time

from prefect.events.schemas.events import Event
from prefect.events.utilities import emit_event
from prefect.events.worker import EventsWorker, ProcessPoolForwardingEventsClient

from tasks.prefect_sync.api import PrefectApi, PrefectAwayError
from tasks.prefect_sync.ledger import JsonObject, Ledger

_TASK_EVENT = "prefect.task-run."
_LAST_EVENT = "rlhf.pipeline.ended"
_REST_S = 10.0


class LedgerEvents:
    """The queue that `ProcessPoolForwardingEventsClient` puts events into. Putting never waits for the server."""

    def __init__(self, ledger: Ledger, api: PrefectApi) -> None:
        self._ledger = ledger
        self._api = api
        self._waiting: queue.Queue[JsonObject] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="prefect-events", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Take the events of this process from now on, until `close`."""
        EventsWorker.set_client_override(ProcessPoolForwardingEventsClient, event_queue=self)

    def put(self, item: tuple[str, Event]) -> None:
        """Keep an event about a task, and send it as soon as possible."""
        event = item[1]
        data: JsonObject = event.model_dump(mode="json")
        if event.event.startswith(_TASK_EVENT):
            self._ledger.add_event(data)
        self._waiting.put(data)

    def close(self, *, limit_s: float) -> None:
        """Wait until all events emitted so far have come and were sent, for at most `limit_s`."""
        emit_event(_LAST_EVENT, resource={"prefect.resource.id": _LAST_EVENT})  # events come in order
        self._thread.join(timeout=limit_s)
        EventsWorker.set_client_override(None)

    def _work(self) -> None:
        rest_until = 0.0
        while (event := self._waiting.get())["event"] != _LAST_EVENT:
            if time.monotonic() < rest_until:
                continue  # the ledger has it, and it is sent from there
            try:
                self._api.record_events([event])
            except PrefectAwayError:
                rest_until = time.monotonic() + _REST_S
