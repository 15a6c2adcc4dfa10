"""Make MLflow show what a run's records say: a stage never fails because MLflow is away, and never waits long for it.

A server that is away, broken or slow costs one short wait; then nothing is sent for a while. What it lacks stays on
disk, and is delivered when the server answers again, by this process or by the next run in the folder.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.mlflow_sync.artifact_places import OtherPlaceError
from tasks.mlflow_sync.parts import create_run, send_part
from tasks.mlflow_sync.sending import can_be_sent_later, mlflow_client, send_points
from tasks.mlflow_sync.state_file import StateFile
from tasks.mlflow_sync.undelivered import HANDLE_PREFIX, Curves, Part, UndeliveredRun
from tasks.store.events import MetricPoint, Reconciliation, read_points

logger = logging.getLogger(__name__)

_CREATION = Part("run")
_PAIRS = ("params", "tags", "figures")
_DELIVERY_LIMIT_S = 10.0
_FINAL_DELIVERY_LIMIT_S = 15.0
# After one answer slower than _SLOW_S, or _PATIENCE_S of slow answers in all, nothing is sent for a while.
_SLOW_S = 3.0
_QUICK_S = 0.5
_PATIENCE_S = 8.0


class Outbox:
    """The MLflow runs of one pipeline run, and what the server lacks of them. No method raises.

    Runs are named by their id or, before the server gave one, by the handle with which they were opened.

    Args:
        uri: tracking URI.
        folder: for what cannot be delivered; files of dead processes there are taken over.
        request_timeout_s: longest wait for one answer.
        rest_after_failure_s: how long nothing is sent to a server that failed or was slow.
        is_up: False while the server still starts; nothing is sent until it is up.
    """

    def __init__(
        self,
        uri: str,
        *,
        folder: Path,
        request_timeout_s: int = 6,
        rest_after_failure_s: float = 20.0,
        is_up: Callable[[], bool] = lambda: True,
    ) -> None:
        self.experiment_id = self._known_experiment = ""
        self.refused: tuple[str, ...] = ()
        self.uri = uri.rstrip("/")
        self._client = mlflow_client(uri, request_timeout_s=request_timeout_s)
        self._rest_after_failure_s = rest_after_failure_s
        self._is_up = is_up
        self._rest_until = 0.0
        self._waited_s = 0.0
        self._warned = False
        self._file = StateFile(folder)
        self._runs = {run.handle: run for run in self._file.taken_over}
        self._may_exist = set(self._runs)
        self._refused_runs: set[str] = set()
        self._failing: set[tuple[str, Part]] = set()
        self._reconciled: dict[str, Reconciliation] = {}
        # Also read from other threads: handle → id, and the points of each id that are known to have arrived.
        self._ids = {run.handle: run.run_id for run in self._runs.values() if run.run_id}
        self._sent: dict[str, dict[tuple[str, int], float]] = {}

    @property
    def pending(self) -> int:
        """Number of parts that wait: a run's creation, parameters, tags, curves, end, each file."""
        return sum(len(list(run.parts())) for run in self._runs.values())

    @property
    def pending_points(self) -> int:
        """Number of points of curves that wait, without those that this process saw arrive."""
        return sum(self._num_unsent(run) for run in self._runs.values())

    def real_id(self, run: str) -> str:
        """Return MLflow's id of a run, or its handle if there is none yet. Callable from another thread."""
        return self._ids.get(run, run)

    def open(self, run: UndeliveredRun) -> str:
        """Take a new run, which `change` has to close. Returns its id, or its handle if there is none yet."""
        self._runs[run.handle] = run
        self._deliver()
        return self.real_id(run.handle)

    @contextmanager
    def change(self, run: str, *, limit_s: float = _DELIVERY_LIMIT_S) -> Iterator[UndeliveredRun]:
        """Give the record of a run to be changed, and deliver the change, or keep it.

        Args:
            limit_s: longest time for the delivery of all that waits; the rest waits on.
        """
        changed = self._record(run)
        yield changed
        if changed.handle in self._refused_runs:
            self._drop(changed)
        self._deliver(limit_s=limit_s)

    def close_open_runs(self, *, but: str, time_ms: int) -> None:
        """End the runs that are still open as KILLED, all but one."""
        for run in self._runs.values():
            if run.is_open and but not in (run.handle, run.run_id):
                run.close("KILLED", time_ms)

    def reconcile(self, run_id: str, events_path: Path) -> Reconciliation:
        """Deliver exactly the points of an events file that the run lacks; keep them for later if that fails."""
        try:
            size_bytes = events_path.stat().st_size
        except OSError:  # the stage died before its first event
            return Reconciliation(in_file=0, delivered=0, pending=0, conflicting=0)
        with self.change(run_id) as changed:
            changed.curves = Curves(events_path=str(events_path.resolve()), size_bytes=size_bytes)
            self._reconciled.pop(changed.handle, None)
        if changed.handle in self._reconciled:
            return self._reconciled[changed.handle]
        in_file = len(read_points(events_path, up_to_bytes=size_bytes))
        return Reconciliation(in_file=in_file, delivered=0, pending=self._num_unsent(changed), conflicting=0)

    def send_points(self, run_id: str, points: tuple[MetricPoint, ...]) -> bool:
        """Send points. Returns True if they need not be sent again. Callable from another thread."""
        run_id = self.real_id(run_id)
        if self._resting or run_id.startswith(HANDLE_PREFIX):
            return False
        began = time.monotonic()
        try:
            send_points(self._client, run_id, points)
        except Exception as error:  # whatever MLflow throws, the stage goes on
            return not self._can_wait(error, f"{len(points)} points")
        self._sent.setdefault(run_id, {}).update({(point.key, point.step): point.value for point in points})
        self._file.sign_of_life()
        self._rest_if_slow(began)
        return True

    def deliver_pending(self) -> int:
        """Try to deliver what waits, also what an earlier process left. Returns how many parts still wait."""
        if self._is_up():
            self._failing.clear()
            self._deliver(limit_s=_FINAL_DELIVERY_LIMIT_S, rests=False)
        return self.pending

    def close(self) -> None:
        """Leave what waits to the next process."""
        self._file.close()

    def refuse(self, reason: str) -> None:
        """Record and log what will never be delivered."""
        if reason not in self.refused:
            logger.warning("MLflow will lack some data: %s", reason)
            self.refused += (reason,)

    @property
    def _resting(self) -> bool:
        return not self._is_up() or time.monotonic() < self._rest_until

    def _record(self, run: str) -> UndeliveredRun:
        for record in self._runs.values():
            if run in (record.handle, record.run_id):
                return record
        # Another process opened it, and ends it.
        return self._runs.setdefault(run, UndeliveredRun(handle=run, run_id=run, is_open=False))

    def _deliver(self, *, limit_s: float = _DELIVERY_LIMIT_S, rests: bool = True) -> None:
        """Deliver what the runs lack, files last, until the server fails or time is up; keep the rest on disk.

        A part that fails although the server answers others is left out until the end, so that it does not block the
        rest for ever.
        """
        self._file.write(self._runs.values())
        deadline = time.monotonic() + limit_s
        waiting = [(run, part) for run in self._runs.values() for part in run.parts()]
        for run, part in sorted(waiting, key=lambda item: item[1].name == "files"):
            if rests and self._resting:
                break
            is_left_out = (run.handle, part) in self._failing or run.handle in self._refused_runs
            if is_left_out or self._waits_for_creation(run, part):
                continue
            if time.monotonic() > deadline:
                self._rest()
                break
            began = time.monotonic()
            if not self._attempt(run, part):
                if time.monotonic() - began > _SLOW_S or not self._answers():
                    break
                self._rest_until = 0.0
                self._failing.add((run.handle, part))
                if part.name in _PAIRS:  # so that one bad pair does not hold up those that are added later
                    run.one_by_one.add(part.name)
        self._file.write(self._runs.values())

    def _waits_for_creation(self, run: UndeliveredRun, part: Part) -> bool:
        """Whether the server does not know yet the run, or for its creation the parent."""
        if part != _CREATION:
            return not run.run_id
        parent = self._runs.get(run.parent)
        return parent is not None and not parent.run_id and parent.handle not in self._refused_runs

    def _answers(self) -> bool:
        try:
            self._client.search_experiments(max_results=1)
        except Exception:  # any error of MLflow means no
            return False
        return True

    def _attempt(self, run: UndeliveredRun, part: Part) -> bool:
        """Send a part. Returns whether the server took or refused it."""
        began = time.monotonic()
        try:
            if part == _CREATION:
                self._create(run)
            elif (result := send_part(self._client, run, part, sent=self._sent.get(run.run_id, {}))) is not None:
                self._reconciled[run.handle] = result
        except Exception as error:  # whatever MLflow throws, the stage goes on
            if self._can_wait(error, part.name):
                return False
            if part == _CREATION:
                self._refused_runs.add(run.handle)
                self._drop(run)
        run.empty(part)
        self._rest_if_slow(began)
        return True

    def _create(self, run: UndeliveredRun) -> None:
        may_exist = run.handle in self._may_exist
        self._may_exist.add(run.handle)
        parent_id = self.real_id(run.parent)
        run.run_id, self.experiment_id = create_run(
            self._client,
            run,
            parent_id="" if parent_id.startswith(HANDLE_PREFIX) else parent_id,  # its parent was refused
            experiment_id=self.experiment_id if run.experiment == self._known_experiment else "",
            may_exist=may_exist,
        )
        self._known_experiment = run.experiment
        self._ids[run.handle] = run.run_id
        for child in self._runs.values():  # the record of a parent may be gone before those of its children
            if child.parent == run.handle:
                child.parent = run.run_id

    def _drop(self, run: UndeliveredRun) -> None:
        """Forget what waits of a run that the server does not take."""
        run.is_open = False
        for part in list(run.parts()):
            if part != _CREATION:
                self.refuse(f"{part.name}: its run was refused")
            run.empty(part)

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
                self.uri,
                what,
                error,
                self._file.path,
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

    def _num_unsent(self, run: UndeliveredRun) -> int:
        sent = self._sent.get(run.run_id, {})
        try:
            return sum((point.key, point.step) not in sent for point in run.curves.points()) if run.curves else 0
        except OSError:
            return 0
