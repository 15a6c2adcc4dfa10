"""Split messages so that MLflow takes as much of them as possible, and classify its errors."""

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tasks.store.events import MAX_POINTS_PER_BATCH, MetricPoint

if TYPE_CHECKING:
    from mlflow import MlflowClient

_MAX_KEY_CHARACTERS = 250
_BAD_REQUEST = 400
_MAX_SPLITS = 40

T = TypeVar("T")


class RefusedError(Exception):
    """MLflow refuses a part of a message, also when it is sent again; the rest arrived."""


def send_points(client: "MlflowClient", run_id: str, points: Sequence[MetricPoint]) -> None:
    """Send points a thousand at a time; NaN stays NaN, infinity becomes the largest float on SQL stores.

    Raises:
        RefusedError: some were refused; the others arrived.
    """
    from mlflow.entities import Metric

    metrics = [Metric(mlflow_name(item.key), item.value, item.timestamp_ms, item.step) for item in points]
    send_what_is_taken(metrics, lambda part: client.log_batch(run_id, metrics=part), num_at_once=MAX_POINTS_PER_BATCH)


def send_what_is_taken(items: Sequence[T], send: Callable[[Sequence[T]], object], *, num_at_once: int) -> None:
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
