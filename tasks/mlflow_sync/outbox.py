"""Deliver operations to MLflow, or keep them: a stage never fails because MLflow is away, and never waits long for it.

A server that is away, broken or slow costs one short wait; then nothing is sent for a while. Its operations go into the
spool, and are delivered in order when the server answers again.
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from tasks.mlflow_sync.artifact_places import OtherPlaceError
from tasks.mlflow_sync.operations import CreateRun, EndRun, RunOperation, SendCurves
from tasks.mlflow_sync.sending import can_be_sent_later, send_points
from tasks.mlflow_sync.spool import Spool
from tasks.store.events import MetricPoint, Reconciliation, read_points

logger = logging.getLogger(__name__)

HANDLE_PREFIX = "pending-"
_DRAIN_LIMIT_S = 10.0
_FINAL_DRAIN_LIMIT_S = 15.0
# After one answer slower than _SLOW_S, or _PATIENCE_S of slow answers in all, nothing is sent for a while.
_SLOW_S = 3.0
_QUICK_S = 0.5
_PATIENCE_S = 8.0


class Outbox:
    """The operations of one pipeline run for MLflow. No method raises.

    Runs are named by their id or, before the server gave one, by the handle with which they were created.

    Args:
        uri: tracking URI.
        spool_folder: for what cannot be delivered; files of dead processes there are taken over.
        request_timeout_s: longest wait for one answer.
        rest_after_failure_s: how long nothing is sent to a server that failed or was slow.
        is_up: False while the server still starts; nothing is sent until it is up.
    """

    def __init__(
        self,
        uri: str,
        *,
        spool_folder: Path,
        request_timeout_s: int,
        rest_after_failure_s: float,
        is_up: Callable[[], bool] = lambda: True,
    ) -> None:
        # MLflow reads these at each call. With its defaults a dead server costs 246 s, and MLflow repeats a creation
        # after a time-out, which makes two runs.
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(request_timeout_s)
        os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        self.experiment_id = self._experiment = ""
        self.refused: tuple[str, ...] = ()
        self._uri = uri
        self._client = MlflowClient(tracking_uri=uri)
        self._rest_after_failure_s = rest_after_failure_s
        self._is_up = is_up
        self._rest_until = 0.0
        self._spool = Spool(spool_folder)
        self._aside: list[CreateRun | RunOperation] = []
        self._waited_s = 0.0
        self._ids: dict[str, str] = {}
        self._sent: dict[str, dict[tuple[str, int], float]] = {}
        self._warned = False

    @property
    def spool_path(self) -> Path:
        """File with the operations that wait."""
        return self._spool.path

    @property
    def pending(self) -> int:
        """Number of operations that wait."""
        return len(self._spool)

    @property
    def pending_points(self) -> int:
        """Number of points of curves that wait, without those that this process saw arrive."""
        return sum(self._unsent(item) for item in self._spool.operations if isinstance(item, SendCurves))

    def real_id(self, run: str) -> str:
        """Return MLflow's id of a run, or its handle if there is none yet."""
        return self._ids.get(run, run)

    def do(self, operation: CreateRun | RunOperation, *, now: bool = True) -> bool:
        """Deliver an operation after those that wait, or keep it. Returns whether it was sent or refused."""
        return self._do(operation, now=now)[0]

    def reconcile(self, run: str, events_path: Path) -> Reconciliation:
        """Deliver the points of an events file that the run lacks; keep them for later if that fails."""
        try:
            size_bytes = events_path.stat().st_size
        except OSError:  # the stage died before its first event
            return Reconciliation(in_file=0, delivered=0, pending=0, conflicting=0)
        operation = SendCurves(run=self.real_id(run), events_path=str(events_path.resolve()), size_bytes=size_bytes)
        done, result = self._do(operation)
        if result is not None:
            return result
        in_file = len(read_points(events_path, up_to_bytes=size_bytes))
        return Reconciliation(
            in_file=in_file, delivered=0, pending=0 if done else self._unsent(operation), conflicting=0
        )

    def send_points(self, run: str, points: tuple[MetricPoint, ...]) -> bool:
        """Send points. Returns True if they need not be sent again. Callable from another thread."""
        run_id = self.real_id(run)
        if self._resting or run_id.startswith(HANDLE_PREFIX):
            return False
        began = time.monotonic()
        try:
            send_points(self._client, run_id, points)
        except Exception as error:  # whatever MLflow throws, the stage goes on
            return not self._can_wait(error, f"{len(points)} points")
        self._sent.setdefault(run_id, {}).update({(point.key, point.step): point.value for point in points})
        self._spool.sign_of_life()
        self._rest_if_slow(began)
        return True

    def deliver_pending(self) -> int:
        """Try to deliver the waiting operations now. Returns how many still wait."""
        if not self._is_up():
            return self.pending
        self._aside = []
        self._drain(limit_s=_FINAL_DRAIN_LIMIT_S, rests=False)
        return self.pending

    def close(self) -> None:
        """Leave the waiting operations to the next process."""
        self._spool.close()

    def refuse(self, reason: str) -> None:
        """Record and log what will never be delivered."""
        if reason not in self.refused:
            logger.warning("MLflow will lack some data: %s", reason)
            self.refused += (reason,)

    @property
    def _resting(self) -> bool:
        return not self._is_up() or time.monotonic() < self._rest_until

    def _do(self, operation: CreateRun | RunOperation, *, now: bool = True) -> tuple[bool, Reconciliation | None]:
        may_go = now and not self._resting and self._drain(limit_s=_DRAIN_LIMIT_S)
        if may_go and not self._waits_for_run(operation):
            done, result = self._attempt(operation, is_new=True)
            if done:
                return True, result
        self._spool.append(self._with_real_id(operation))
        return False, None

    def _drain(self, *, limit_s: float, rests: bool = True) -> bool:
        """Deliver what waits, oldest first, until the server fails or time is up. Returns whether all were tried.

        An operation that fails although the server answers others is set aside until the end, so that it does not
        block the rest for ever.
        """
        waiting = [item for item in self._spool.operations if item not in self._aside]
        if not waiting:
            return True
        deadline = time.monotonic() + limit_s
        while waiting and time.monotonic() < deadline and not (rests and self._resting):
            began = time.monotonic()
            if not self._waits_for_run(waiting[0]) and not self._attempt(waiting[0])[0]:
                if time.monotonic() - began > _SLOW_S or not self._answers():
                    break
                self._rest_until = 0.0
                self._aside.append(waiting[0])
            elif self._waits_for_run(waiting[0]):
                self._aside.append(waiting[0])
            waiting.pop(0)
        if waiting:
            self._rest()
        left = [item for item in self._spool.operations if item in waiting or item in self._aside]
        self._aside = [self._with_real_id(item) for item in self._aside]
        self._spool.replace([self._with_real_id(item) for item in left])
        return not waiting

    def _waits_for_run(self, operation: CreateRun | RunOperation) -> bool:
        """Whether the operation belongs to a run whose creation was set aside."""
        needed = operation.parent if isinstance(operation, CreateRun) else operation.run
        return any(isinstance(item, CreateRun) and item.run == needed for item in self._aside)

    def _answers(self) -> bool:
        try:
            self._client.search_experiments(max_results=1)
        except Exception:  # any error of MLflow means no
            return False
        return True

    def _attempt(
        self, operation: CreateRun | RunOperation, *, is_new: bool = False
    ) -> tuple[bool, Reconciliation | None]:
        """Send an operation. Returns whether it was sent or refused, and the result of a reconciliation.

        Args:
            is_new: True if it was never sent before.
        """
        began = time.monotonic()
        result = None
        try:
            result = self._send(operation, is_new=is_new)
        except Exception as error:  # whatever MLflow throws, the stage goes on
            if self._can_wait(error, operation.kind):
                return False, None
        if isinstance(operation, EndRun):
            self._spool.run_ended(self.real_id(operation.run))
        self._rest_if_slow(began)
        return True, result

    def _send(self, operation: CreateRun | RunOperation, *, is_new: bool) -> Reconciliation | None:
        if isinstance(operation, CreateRun):
            parent_id = self.real_id(operation.parent)
            parent_id = "" if parent_id.startswith(HANDLE_PREFIX) else parent_id  # its parent was refused
            known = self.experiment_id if operation.experiment == self._experiment else ""
            self._ids[operation.run], self.experiment_id = operation.create(
                self._client, parent_id=parent_id, experiment_id=known, may_exist=not is_new
            )
            self._experiment = operation.experiment
            self._spool.run_opened(self._ids[operation.run])
            return None
        run_id = self.real_id(operation.run)
        if run_id.startswith(HANDLE_PREFIX):
            raise LookupError("its run was refused")
        if isinstance(operation, SendCurves):
            return operation.send(self._client, run_id, sent=self._sent.get(run_id, {}))
        operation.send(self._client, run_id)
        return None

    def _can_wait(self, error: Exception, what: str) -> bool:
        if not can_be_sent_later(error):
            # All files have one place, so one message; any other reason is about one value.
            is_of_all = isinstance(error, OtherPlaceError)
            self.refuse(str(error) if is_of_all else f"{what}: {type(error).__name__}: {error}")
            return False
        self._rest()
        if not self._warned:
            self._warned = True
            logger.warning(
                "MLflow at %s did not take %s: %s. The run goes on; what MLflow lacks waits in %s.",
                self._uri,
                what,
                error,
                self.spool_path,
            )
        return True

    def _rest(self) -> None:
        self._rest_until = time.monotonic() + self._rest_after_failure_s
        self._waited_s = 0.0

    def _rest_if_slow(self, began: float) -> None:
        took_s = time.monotonic() - began
        if took_s > _QUICK_S:
            self._waited_s += took_s
        if took_s > _SLOW_S or self._waited_s > _PATIENCE_S:
            self._rest()

    def _with_real_id(self, operation: CreateRun | RunOperation) -> CreateRun | RunOperation:
        if isinstance(operation, CreateRun):
            return operation.model_copy(update={"parent": self.real_id(operation.parent)})
        return operation.model_copy(update={"run": self.real_id(operation.run)})

    def _unsent(self, operation: SendCurves) -> int:
        sent = self._sent.get(self.real_id(operation.run), {})
        try:
            return sum((point.key, point.step) not in sent for point in operation.points())
        except OSError:
            return 0
