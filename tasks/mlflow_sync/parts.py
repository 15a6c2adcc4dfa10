"""Create a run of MLflow and send it one part. Doing so twice leaves the server as doing it once.

The server's answer can be lost after it did its work. So a run is looked up by its handle before it is created again, a
point carries its time from the events file, and a point that the run has is not sent.
"""

import posixpath
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.mlflow_sync.artifact_places import upload_file
from tasks.mlflow_sync.pages import EXPERIMENT_TAGS
from tasks.mlflow_sync.sending import Sent, mlflow_name, send_curves, send_points, send_what_is_taken
from tasks.mlflow_sync.undelivered import FileSource, Part, UndeliveredRun
from tasks.store.events import MetricPoint, Reconciliation

if TYPE_CHECKING:
    from mlflow import MlflowClient

# MLflow does not show tags that begin with "mlflow.".
HANDLE_TAG = "mlflow.rlhfHandle"
_MAX_PAIRS_PER_BATCH = 100
_MAX_DIGEST_CHARACTERS = 36


def create_run(
    client: "MlflowClient", run: UndeliveredRun, *, parent_id: str, experiment_id: str = "", may_exist: bool = True
) -> tuple[str, str]:
    """Return the ids of run and experiment; create the run only if none has its handle.

    Args:
        parent_id: empty for a run without a parent.
        experiment_id: empty if unknown.
        may_exist: False if this was never sent before.
    """
    experiment_id = experiment_id or experiment_id_of(client, run.experiment)
    if may_exist:
        found = client.search_runs([experiment_id], f"tags.`{HANDLE_TAG}` = '{run.handle}'", max_results=1)
        if found:
            return str(found[0].info.run_id), experiment_id
    tags = {HANDLE_TAG: run.handle} | ({"mlflow.parentRunId": parent_id} if parent_id else {})
    made = client.create_run(experiment_id, start_time=run.start_time_ms, tags=tags, run_name=run.name)
    return str(made.info.run_id), experiment_id


def experiment_id_of(client: "MlflowClient", name: str) -> str:
    """Return the id of an experiment; make it if it is missing."""
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


def send_part(client: "MlflowClient", run: UndeliveredRun, part: Part, *, sent: Sent) -> Reconciliation | None:
    """Send one part of a run that the server has. Returns the comparison with the server, if the part is the curves.

    Args:
        sent: the points known to have arrived, key and step → value.

    Raises:
        RefusedError: the server refuses some of it, and has the rest.
        FileNotFoundError: a file of it is gone.
        TimeoutError: the server is too slow for all curves; those points that were sent stay.
    """
    from mlflow.entities import Param, RunTag

    match part.name:
        case "params" | "tags" as name:
            kind = Param if name == "params" else RunTag
            pairs = [kind(mlflow_name(key), value) for key, value in run.pairs(part).items()]
            send_what_is_taken(pairs, lambda some: client.log_batch(run.run_id, **{name: some}), _MAX_PAIRS_PER_BATCH)
        case "datasets":
            _send_datasets(client, run)
        case "figures":
            points = [MetricPoint(key, value, time_ms, 0) for key, (value, time_ms) in run.pairs(part).items()]
            send_points(client, run.run_id, points)
        case "curves" if run.curves:
            return send_curves(client, run.run_id, run.curves.points(), sent=sent)
        case "end" if run.end:
            client.set_terminated(run.run_id, status=run.end.status, end_time=run.end.time_ms)
        case "files":
            _send_file(client, run.run_id, part.key, run.files[part.key])
    return None


def _send_datasets(client: "MlflowClient", run: UndeliveredRun) -> None:
    """Send the inputs. MLflow keeps 36 characters of a digest, so a tag has the whole one."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    def shown(digest: str) -> str:
        return digest.removeprefix("sha256:")[:_MAX_DIGEST_CHARACTERS]

    inputs = [
        DatasetInput(
            Dataset(item.name, shown(item.digest), item.source_type, item.source),
            [InputTag("mlflow.data.context", "input")],
        )
        for item in run.datasets
    ]
    client.log_inputs(run.run_id, datasets=inputs)


def _send_file(client: "MlflowClient", run_id: str, place: str, source: FileSource) -> None:
    folder, name = posixpath.split(place)
    if source.path:
        if not Path(source.path).is_file() or Path(source.path).is_symlink():
            raise FileNotFoundError(f"{source.path} is no regular file.")
        upload_file(client, run_id, Path(source.path), folder=folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / name
        path.write_text(source.text, encoding="utf-8")
        upload_file(client, run_id, path, folder=folder)
