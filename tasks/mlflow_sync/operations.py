"""Operations for MLflow, as records: each can be sent now, or be kept in a file and sent later.

The server's answer can be lost after it did its work, so sending an operation twice does no harm. A run is looked up by
its handle before it is created again, and a point of a curve carries its time from the events file.
"""

import json
import math
import posixpath
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.spec import StageInput
from tasks.mlflow_sync.artifact_places import upload_file
from tasks.mlflow_sync.pages import EXPERIMENT_TAGS
from tasks.mlflow_sync.sending import RefusedError, mlflow_name, send_points, send_what_is_taken
from tasks.store.events import MetricPoint, Reconciliation, read_points

if TYPE_CHECKING:
    from mlflow import MlflowClient

Pairs = tuple[tuple[str, str], ...]
RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

# MLflow does not show tags that begin with "mlflow.".
HANDLE_TAG = "mlflow.rlhfHandle"
_MAX_PAIRS_PER_BATCH = 100
_MAX_DIGEST_CHARACTERS = 36
_LARGEST_FLOAT = 1.7976931348623157e308
_CURVES_LIMIT_S = 10.0
_NOTHING_SENT: Mapping[tuple[str, int], float] = {}


class CreateRun(Frozen):
    """A run, child of `parent` if that is not empty. `run` is its handle until the server gives an id."""

    kind: Literal["create_run"] = "create_run"
    run: str
    experiment: str
    name: str
    parent: str = ""
    start_time_ms: int
    tags: Pairs = ()

    def create(
        self, client: "MlflowClient", *, parent_id: str, experiment_id: str = "", may_exist: bool = True
    ) -> tuple[str, str]:
        """Return the ids of run and experiment; create the run only if none has this handle.

        Args:
            experiment_id: empty if unknown.
            may_exist: False if this was never sent before.
        """
        experiment_id = experiment_id or _experiment_id(client, self.experiment)
        if may_exist:
            found = client.search_runs([experiment_id], f"tags.`{HANDLE_TAG}` = '{self.run}'", max_results=1)
            if found:
                return str(found[0].info.run_id), experiment_id
        tags = {**dict(self.tags), HANDLE_TAG: self.run}
        if parent_id:
            tags["mlflow.parentRunId"] = parent_id
        made = client.create_run(experiment_id, start_time=self.start_time_ms, tags=tags, run_name=self.name)
        return str(made.info.run_id), experiment_id


def _experiment_id(client: "MlflowClient", name: str) -> str:
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            # With the kind, the page does not ask whether this is about traces of an agent.
            return str(client.create_experiment(name, tags=EXPERIMENT_TAGS))
        except MlflowException:  # another pipeline made it meanwhile
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    return str(experiment.experiment_id)


class LogParams(Frozen):
    """Parameters of a run; MLflow refuses to change them."""

    kind: Literal["params"] = "params"
    run: str
    params: Pairs

    def send(self, client: "MlflowClient", run_id: str) -> None:
        """Send the parameters, a hundred at a time."""
        from mlflow.entities import Param

        params = [Param(mlflow_name(key), value) for key, value in self.params]
        send_what_is_taken(params, lambda part: client.log_batch(run_id, params=part), num_at_once=_MAX_PAIRS_PER_BATCH)


class SetTags(Frozen):
    """Tags of a run."""

    kind: Literal["tags"] = "tags"
    run: str
    tags: Pairs

    def send(self, client: "MlflowClient", run_id: str) -> None:
        """Send the tags, a hundred at a time."""
        from mlflow.entities import RunTag

        tags = [RunTag(mlflow_name(key), value) for key, value in self.tags]
        send_what_is_taken(tags, lambda part: client.log_batch(run_id, tags=part), num_at_once=_MAX_PAIRS_PER_BATCH)


class LogFigures(Frozen):
    """Final figures of a stage: finite values, sent once."""

    kind: Literal["figures"] = "figures"
    run: str
    figures: tuple[tuple[str, float], ...]
    timestamp_ms: int

    def send(self, client: "MlflowClient", run_id: str) -> None:
        """Send the figures at step 0."""
        send_points(client, run_id, [MetricPoint(key, value, self.timestamp_ms, 0) for key, value in self.figures])


class LogText(Frozen):
    """A text that becomes an artifact file."""

    kind: Literal["text"] = "text"
    run: str
    text: str
    file: str

    def send(self, client: "MlflowClient", run_id: str) -> None:
        """Upload the text under its path."""
        folder, name = posixpath.split(self.file)
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / name
            path.write_text(self.text, encoding="utf-8")
            upload_file(client, run_id, path, folder=folder)


class LogFile(Frozen):
    """A file that is uploaded as it is; it must still be there when it is sent."""

    kind: Literal["file"] = "file"
    run: str
    path: str
    folder: str = ""

    def send(self, client: "MlflowClient", run_id: str) -> None:
        """Upload the file into `folder` of the run's artifacts."""
        if not Path(self.path).is_file() or Path(self.path).is_symlink():
            raise FileNotFoundError(f"{self.path} is no regular file.")
        upload_file(client, run_id, Path(self.path), folder=self.folder)


class DatasetUse(Frozen):
    """One input as the run page shows it: name, digest, source."""

    name: str
    digest: str
    source_type: str
    source: str
    context: str = "input"


class LogInputs(Frozen):
    """The inputs of a stage."""

    kind: Literal["inputs"] = "inputs"
    run: str
    datasets: tuple[DatasetUse, ...]

    def send(self, client: "MlflowClient", run_id: str) -> None:
        """Send the inputs. MLflow keeps 36 characters of a digest, so a tag has the whole one."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        client.log_inputs(
            run_id,
            datasets=[
                DatasetInput(
                    Dataset(
                        item.name,
                        item.digest.removeprefix("sha256:")[:_MAX_DIGEST_CHARACTERS],
                        item.source_type,
                        item.source,
                    ),
                    [InputTag("mlflow.data.context", item.context)],
                )
                for item in self.datasets
            ],
        )


class SendCurves(Frozen):
    """The curves of an events file. Sending them leaves one point per key and step in the run."""

    kind: Literal["curves"] = "curves"
    run: str
    events_path: str
    size_bytes: int = Field(description="Size of the file when the stage ended; a later attempt appends to it")

    def points(self) -> tuple[MetricPoint, ...]:
        """Return the points in the file.

        Raises:
            FileNotFoundError: the file is gone.
        """
        if not Path(self.events_path).is_file():
            raise FileNotFoundError(f"{self.events_path} is gone, and its curves with it.")
        return read_points(Path(self.events_path), up_to_bytes=self.size_bytes)

    def send(
        self, client: "MlflowClient", run_id: str, *, sent: Mapping[tuple[str, int], float] = _NOTHING_SENT
    ) -> Reconciliation:
        """Send the points that the run lacks. A point that the run has with another value stays, and is counted.

        Args:
            sent: the points known to have arrived, key and step → value.

        Raises:
            RefusedError: the server refuses some points; it has all others.
            TimeoutError: the server is too slow for all points; those that were sent stay.
        """
        points = self.points()
        unsure: dict[str, list[MetricPoint]] = {}
        for point in points:
            arrived = sent.get((point.key, point.step))
            if arrived is None or not _same(arrived, point.value):
                unsure.setdefault(point.key, []).append(point)
        delivered, conflicting, refused = _send_missing(client, run_id, unsure)
        odd = [f"{point.key}@{point.step}={point.value}" for point in points if not math.isfinite(point.value)]
        if odd:
            client.set_tag(run_id, "rlhf.non_finite", ", ".join(odd)[:5000])
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


class EndRun(Frozen):
    """The end of a run."""

    kind: Literal["end_run"] = "end_run"
    run: str
    status: RunStatus
    end_time_ms: int

    def send(self, client: "MlflowClient", run_id: str) -> None:
        """Set status and end."""
        client.set_terminated(run_id, status=self.status, end_time=self.end_time_ms)


RunOperation = LogParams | SetTags | LogFigures | LogText | LogFile | LogInputs | SendCurves | EndRun


def dataset_use(item: StageInput) -> DatasetUse:
    """Return an input of a stage as MLflow shows it."""
    source = json.dumps({"uri": item.path, "digest": item.digest, "origin": item.origin}, ensure_ascii=False)
    source_type = "hub" if item.digest.startswith("hub:") else "local"
    return DatasetUse(name=item.name, digest=item.digest, source_type=source_type, source=source)


def flat_params(values: Mapping[str, object], *, prefix: str = "") -> Pairs:
    """Return the values as text; a nested mapping becomes dotted names, a list JSON."""
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found.extend(flat_params(value, prefix=f"{prefix}{key}."))
        else:
            text = json.dumps(value, default=str) if isinstance(value, (list, tuple)) else str(value)
            found.append((f"{prefix}{key}", text))
    return tuple(found)


def _same(left: float, right: float) -> bool:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return math.isclose(_clipped(left), _clipped(right), rel_tol=1e-12)


def _clipped(value: float) -> float:
    return max(-_LARGEST_FLOAT, min(_LARGEST_FLOAT, value))
