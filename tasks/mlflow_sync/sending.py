"""Talk to MLflow without long waits: send as many points and pairs as it takes, and classify its errors."""

import math
import os
import posixpath
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from tasks.store.events import MAX_POINTS_PER_BATCH, MetricPoint, Reconciliation

if TYPE_CHECKING:
    from mlflow import MlflowClient

_MAX_KEY_CHARACTERS = 250
_MAX_TAG_CHARACTERS = 5000
_BAD_REQUEST = 400
_MAX_SPLITS = 40
_LARGEST_FLOAT = 1.7976931348623157e308
_CURVES_LIMIT_S = 10.0

T = TypeVar("T")
Sent = Mapping[tuple[str, int], float]


class RefusedError(Exception):
    """MLflow refuses a part of a message, also when it is sent again; the rest arrived."""


def mlflow_client(uri: str, *, request_timeout_s: int = 6) -> "MlflowClient":
    """Return a client that sends each request once, and waits at most so long for its answer."""
    # MLflow reads these at each call. With its defaults a dead server costs 246 s, and MLflow repeats a creation after
    # a time-out, which makes two runs.
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(request_timeout_s)
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def send_points(client: "MlflowClient", run_id: str, points: Sequence[MetricPoint]) -> None:
    """Send points a thousand at a time; NaN stays NaN, infinity becomes the largest float on SQL stores.

    Raises:
        RefusedError: some were refused; the others arrived.
    """
    from mlflow.entities import Metric

    metrics = [Metric(mlflow_name(item.key), item.value, item.timestamp_ms, item.step) for item in points]
    send_what_is_taken(metrics, lambda some: client.log_batch(run_id, metrics=some), MAX_POINTS_PER_BATCH)


def send_curves(client: "MlflowClient", run_id: str, points: Sequence[MetricPoint], *, sent: Sent) -> Reconciliation:
    """Send the points that the run lacks. A point that the run has with another value stays, and is counted.

    Args:
        sent: the points known to have arrived, key and step → value.

    Raises:
        RefusedError: the server refuses some points, and has the others.
        TimeoutError: the server is too slow for all points; those that were sent stay.
    """
    unsure: dict[str, list[MetricPoint]] = {}
    for point in points:
        arrived = sent.get((point.key, point.step))
        if arrived is None or not _same(arrived, point.value):
            unsure.setdefault(point.key, []).append(point)
    delivered, conflicting, refused = _send_missing(client, run_id, unsure)
    if odd := [f"{point.key}@{point.step}={point.value}" for point in points if not math.isfinite(point.value)]:
        client.set_tag(run_id, "rlhf.non_finite", ", ".join(odd)[:_MAX_TAG_CHARACTERS])
    if refused:
        raise RefusedError("; ".join(refused))
    return Reconciliation(in_file=len(points), delivered=delivered, pending=0, conflicting=conflicting)


def _send_missing(
    client: "MlflowClient", run_id: str, curves: Mapping[str, Sequence[MetricPoint]]
) -> tuple[int, int, list[str]]:
    """Return how many points were sent, how many the run has with another value, and the refusals."""
    deadline = time.monotonic() + _CURVES_LIMIT_S
    known = client.get_run(run_id).data.metrics if curves else {}
    delivered = conflicting = 0
    refused: list[str] = []
    # Curves that the run lacks come first, so that each call gets further with a slow server.
    for key in sorted(curves, key=lambda key: (mlflow_name(key) in known, key)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{delivered} points were sent in {_CURVES_LIMIT_S:g} s; the others wait.")
        history = client.get_metric_history(run_id, mlflow_name(key)) if mlflow_name(key) in known else ()
        stored = {item.step: item.value for item in history}
        missing = [point for point in curves[key] if point.step not in stored]
        try:
            send_points(client, run_id, missing)
            delivered += len(missing)
        except RefusedError as error:
            refused.append(str(error))
        conflicting += sum(point.step in stored and not _same(point.value, stored[point.step]) for point in curves[key])
    return delivered, conflicting, refused


def _same(left: float, right: float) -> bool:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return math.isclose(_clipped(left), _clipped(right), rel_tol=1e-12)


def _clipped(value: float) -> float:
    return max(-_LARGEST_FLOAT, min(_LARGEST_FLOAT, value))


def send_what_is_taken(items: Sequence[T], send: Callable[[Sequence[T]], object], num_at_once: int) -> None:
    """Send the items in batches; halve a refused batch, so that a bad item does not cost the others.

    Raises:
        RefusedError: some were refused; the others arrived.
    """
    refused: list[str] = []
    reason, num_splits = "", 0
    parts = [items[start : start + num_at_once] for start in range(0, len(items), num_at_once)]
    while parts:
        part = parts.pop(0)
        try:
            send(part)
        except Exception as error:
            if not _is_about_the_content(error):
                raise
            num_splits += 1
            if len(part) > 1 and num_splits <= _MAX_SPLITS:
                middle = len(part) // 2
                parts[:0] = [part[:middle], part[middle:]]
            else:
                refused += [str(getattr(item, "key", item)) for item in part]
                reason = str(error)
    if refused:
        raise RefusedError(f"{', '.join(sorted(set(refused)))}: {reason}")


def _is_about_the_content(error: Exception) -> bool:
    """Whether the server may take a part of the same message."""
    from mlflow.exceptions import MlflowException

    return isinstance(error, MlflowException) and bool(error.get_http_status_code() == _BAD_REQUEST)


def mlflow_name(key: str) -> str:
    """Return the nearest name that MLflow takes: it refuses a whole batch for one bad character."""
    name = posixpath.normpath(re.sub(r"[^\w\-. /:]", "_", key, flags=re.ASCII)).lstrip("./ ")
    return name[:_MAX_KEY_CHARACTERS] or "unnamed"


def can_be_sent_later(error: Exception) -> bool:
    """Whether the same message may succeed later: the server was away, slow or broken, and did not reject it."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    if isinstance(error, MlflowException):
        return not 400 <= error.get_http_status_code() < 500 or error.get_http_status_code() in (401, 403, 408, 429)
    if isinstance(error, RequestException):
        code = error.response.status_code if error.response is not None else 503
        return code >= 500 or code in (401, 403, 408, 429)
    return isinstance(error, (ConnectionError, TimeoutError))
