"""Follow a stage's `events.jsonl` and pass its events on. The file is the truth; MLflow gets its points from it.

Nothing here waits for a server, and nothing here raises into the stage. What cannot be sent while the stage runs,
`MetricsDelivery.reconcile` later reads from the file.
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from containers.contracts.digests import UnsafeFileError, open_regular

logger = logging.getLogger(__name__)

_READ_LIMIT_BYTES = 4 * 1024 * 1024
_LINE_START = b'{"time": '
_MAX_WAITING_POINTS = 100_000
MAX_POINTS_PER_BATCH = 1000


class MetricPoint(NamedTuple):
    """One point of a curve; `value` may be NaN or infinite. `timestamp_ms` is when the stage wrote it."""

    key: str
    value: float
    timestamp_ms: int
    step: int


class EventFeed:
    """Passes each complete new line of an events file to its callback; `poll` takes milliseconds and never raises.

    A half-written last line waits for its end. A line that cannot be read is skipped and counted in `num_garbage`. The
    file may appear later. If it is truncated or replaced, it is read from its start.

    Args:
        path: the events file. The stage writes it, so links, FIFOs and devices are not opened.
        on_metrics: gets the points of one line.
        on_progress: gets done, total and a text.
        on_note: gets a text for people.
        from_end: skip what is there already; an earlier attempt wrote it.
        up_to_bytes: skip what follows; a later attempt wrote it.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_metrics: Callable[[tuple[MetricPoint, ...]], None],
        on_progress: Callable[[int, int, str], None] = lambda done, total, text: None,
        on_note: Callable[[str], None] = lambda text: None,
        from_end: bool = False,
        up_to_bytes: int | None = None,
    ) -> None:
        self.num_garbage = 0
        self._path = path
        self._on_metrics = on_metrics
        self._on_progress = on_progress
        self._on_note = on_note
        self._offset = 0
        self._inode: int | None = None
        self._up_to_bytes = up_to_bytes
        if from_end and path.is_file():
            found = path.stat()
            self._inode, self._offset = found.st_ino, found.st_size

    def poll(self) -> bool:
        """Pass on the complete new lines, up to 4 MiB of them. Return whether there is more to read at once."""
        try:
            data, more = self._read()
        except (OSError, UnsafeFileError) as error:
            logger.warning("%s cannot be read: %s", self._path, error)
            return False
        end = data.rfind(b"\n") + 1
        if not end and more:  # no line is that long: garbage
            self._offset += len(data)
            self.num_garbage += 1
        self._offset += end
        for line in data[:end].splitlines():
            if line.strip():
                self._hand_on(line)
        return more

    def _read(self) -> tuple[bytes, bool]:
        try:
            stream = open_regular(self._path)
        except FileNotFoundError:
            return b"", False
        with stream:
            found = os.fstat(stream.fileno())
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._offset = 0
            self._inode = found.st_ino
            stream.seek(self._offset)
            end = found.st_size if self._up_to_bytes is None else min(found.st_size, self._up_to_bytes)
            left = max(0, end - self._offset)
            return stream.read(min(left, _READ_LIMIT_BYTES)), left > _READ_LIMIT_BYTES

    def _hand_on(self, line: bytes) -> None:
        try:
            event = self._parsed(line)
            kind = event["type"]
            if kind == "metrics":
                call: Callable[[], None] = partial(self._on_metrics, _points(event))
            elif kind == "progress":
                text = " ".join(part for part in (str(event["unit"]), str(event["text"])) if part)
                call = partial(self._on_progress, int(event["done"]), int(event["total"]), text)
            elif kind == "note":
                call = partial(self._on_note, str(event["text"]))
            elif kind == "stopping":
                return  # for the program that stops the stage: `containers/contracts/stop_grace.py`
            else:
                raise ValueError(f"unknown type {kind!r}")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            self.num_garbage += 1
            return
        try:
            call()
        except Exception:  # a listener must not stop the stage
            logger.exception("A listener to %s failed.", self._path)

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            start = line.rfind(_LINE_START)
            if start <= 0:
                raise
            # A killed attempt left half a line, and the next attempt appended to it.
            event = json.loads(line[start:])
            self.num_garbage += 1
        return event


def _points(event: dict[str, Any]) -> tuple[MetricPoint, ...]:
    step, timestamp_ms = int(event["step"]), int(float(event["time"]) * 1000)
    values = {**event["values"], **event.get("non_finite", {})}
    return tuple(MetricPoint(str(key), float(value), timestamp_ms, step) for key, value in values.items())


def read_points(path: Path, *, up_to_bytes: int | None = None) -> tuple[MetricPoint, ...]:
    """Return every point of an events file, one per key and step: of a step written twice, the last one."""
    points: dict[tuple[str, int], MetricPoint] = {}

    def keep(new: tuple[MetricPoint, ...]) -> None:
        points.update({(point.key, point.step): point for point in new})

    feed = EventFeed(path, on_metrics=keep, up_to_bytes=up_to_bytes)
    while feed.poll():
        pass
    return tuple(points.values())


class Reconciliation(NamedTuple):
    """Result of comparing file and server, in points (one per key and step)."""

    in_file: int
    delivered: int
    pending: int
    conflicting: int


class PointSink(Protocol):
    """Receiver of points: `tasks.mlflow_sync.tracking.Tracking`. Neither method raises."""

    def send_points(self, run_id: str, points: tuple[MetricPoint, ...]) -> bool:
        """Send the points. Return whether they need not be sent again."""

    def reconcile(self, run_id: str, events_path: Path) -> Reconciliation:
        """Deliver what the server lacks."""


class MetricsDelivery:
    """Sends points in batches from its own thread, so that `add` only puts them into a list.

    Args:
        sink: receiver of the points.
        run_id: the stage's run.
        interval_s: time to collect points before they are sent.
        retry_s: wait after a batch that could not be sent.
    """

    def __init__(self, sink: PointSink, run_id: str, *, interval_s: float = 1.0, retry_s: float = 5.0) -> None:
        self._sink = sink
        self._run_id = run_id
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._waiting: dict[tuple[str, int], MetricPoint] = {}
        self._sent: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="metrics-delivery", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Points added and not yet sent."""
        with self._lock:
            return len(self._waiting)

    def add(self, points: Iterable[MetricPoint]) -> None:
        """Take points; a step already sent is left as it is, a step still waiting is replaced."""
        with self._lock:
            for point in points:
                where = (point.key, point.step)
                if where not in self._sent and len(self._waiting) < _MAX_WAITING_POINTS:
                    self._waiting[where] = point

    def close(self, *, limit_s: float = 8.0) -> int:
        """Try once more to send what waits, for at most `limit_s`. Return how many points were not sent."""
        self._closing.set()
        self._thread.join(timeout=limit_s)
        return self.num_waiting

    def reconcile(self, events_path: Path) -> Reconciliation:
        """Deliver exactly the points of the file that the server lacks: one per key and step."""
        return self._sink.reconcile(self._run_id, events_path)

    def _work(self) -> None:
        wait_s = self._interval_s
        while not self._closing.wait(timeout=wait_s):
            wait_s = self._interval_s if self._send_waiting() else self._retry_s
        self._send_waiting()

    def _send_waiting(self) -> bool:
        while True:
            with self._lock:
                batch = tuple(self._waiting.values())[:MAX_POINTS_PER_BATCH]
            if not batch:
                return True
            if not self._sink.send_points(self._run_id, batch):
                return False
            with self._lock:
                for point in batch:
                    self._sent.add((point.key, point.step))
                    # also if it was replaced meanwhile: a server keeps the first value
                    self._waiting.pop((point.key, point.step), None)
