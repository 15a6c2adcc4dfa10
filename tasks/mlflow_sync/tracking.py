"""The MLflow side of a pipeline run: one parent run, one child per attempt at a stage.

No method raises or waits long: see `tasks.mlflow_sync.outbox`.
"""

import getpass
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from containers.contracts.manifest import LineageEntry
from containers.contracts.names import REPORT_HTML_FILE, REPORT_MARKDOWN_FILE, StageName
from containers.contracts.outcome import Metric
from containers.contracts.spec import StageInput, StageSpec
from tasks.mlflow_sync.files import MIB, RunFiles
from tasks.mlflow_sync.pages import FOR_TRAINING
from tasks.mlflow_sync.start import mlflow_start
from tasks.mlflow_sync.state_file import PENDING_FOLDER
from tasks.mlflow_sync.undelivered import HANDLE_PREFIX, RunStatus, UndeliveredRun, dataset_use, flat_params
from tasks.sources.labels import corrected_name

logger = logging.getLogger(__name__)

_NOTE_TAG = "mlflow.note.content"
_NOTE_CHARACTERS = 7500
# Longest waits for a server that is starting: of all stages of a run together, and of a run that has ended.
_BESIDE_LIMIT_S = 120.0
_START_LIMIT_S = 15.0


class Tracking(RunFiles):
    """Report one pipeline run to MLflow.

    No method raises; see `pending`, `pending_points` and `refused`.

    Methods return and take MLflow's run ids, or a handle starting with `pending-` for a run that the server does not
    know yet; both work everywhere here.

    Args:
        uri: tracking server, or any other tracking URI of MLflow.
        output_dir: the run's folder; what cannot be delivered waits there in `mlflow_pending/`.
        experiment: name of the MLflow experiment, created if missing.
        request_timeout_s: longest wait for one answer.
        rest_after_failure_s: how long nothing is sent to a server that failed or was slow.
        largest_file_bytes: see `RunFiles`.
    """

    def __init__(
        self,
        uri: str,
        *,
        output_dir: Path,
        experiment: str = "rlhf-flows",
        request_timeout_s: int = 6,
        rest_after_failure_s: float = 20.0,
        largest_file_bytes: int = 64 * MIB,
    ) -> None:
        self._experiment = experiment
        self._start = mlflow_start()
        self._is_met = self._start.is_up
        self._patience_s = _BESIDE_LIMIT_S
        self._once_up: list[Callable[[], None]] = []
        self.largest_file_bytes = largest_file_bytes
        super().__init__(
            uri,
            folder=output_dir / PENDING_FOLDER,
            request_timeout_s=request_timeout_s,
            rest_after_failure_s=rest_after_failure_s,
            is_up=lambda: self._start.is_up,
        )
        self._parent = ""
        self._name = ""
        # Runs begin and end by one clock, so that a change of the system clock makes no duration wrong.
        self._clock_starts_ms = int((time.time() - time.monotonic()) * 1000)

    @property
    def pipeline_run_id(self) -> str:
        """Id of the parent run; empty before `start_pipeline`."""
        return self.real_id(self._parent)

    @property
    def missing_because(self) -> str:
        """Why the server that this process starts is not up; empty if it is, or may still come up."""
        return self._start.problem

    def wait_for_server(self) -> None:
        """Wait until the server that this process starts is up, and deliver what waits. Does not wait for others.

        A server that does not start, or takes too long, counts as away.
        """
        if self._is_met:
            return
        began = time.monotonic()
        self._start.wait(limit_s=self._patience_s)
        self._patience_s = max(0.0, self._patience_s - (time.monotonic() - began))
        if self._start.is_up:
            self._is_met = True
            self.deliver_pending()
            for call in self._once_up:
                call()

    def catch_up(self) -> None:
        """Deliver pending messages if the server is up by now. Does not wait for it."""
        if self._start.is_up:
            self.wait_for_server()

    def once_up(self, call: Callable[[], None]) -> None:
        """Call it at once if the run waits for no start, else when `wait_for_server` has seen the server up."""
        if self._is_met:
            call()
        else:
            self._once_up.append(call)

    def run_url(self, run_id: str) -> str:
        """Return the address of the run's page; empty while the run is pending or if the URI is no web address."""
        return self._page(run_id, "")

    def file_url(self, run_id: str, file: str) -> str:
        """Return the page of a file that was logged to a run; empty as for `run_url`."""
        return self._page(run_id, f"/artifacts/{file}")

    def start_pipeline(
        self, name: str, *, tags: Mapping[str, str] | None = None, params: Mapping[str, object] | None = None
    ) -> None:
        """Open the parent run."""
        self._name = name
        self._parent = self._opened(name, parent="", tags=tags or {})
        if params:
            self.log_params(self._parent, params)

    def correct_name(self, guessed: str, known: str) -> None:
        """Replace a guessed part of the parent run's name by the known one; do nothing if the name lacks it."""
        name = corrected_name(self._name, guessed=guessed, known=known)
        if name != self._name:
            self._name = name
            self.set_tags(self._parent, {"mlflow.runName": self._name})

    def start_stage(self, stage: StageName, *, attempt: int, tags: Mapping[str, str] | None = None) -> str:
        """Open a child run for one attempt at a stage; attempt 0 reuses an artifact. Returns its id."""
        own = {"rlhf.stage": stage.value, "rlhf.attempt": str(attempt)}
        return self._opened(stage.value, parent=self._parent, tags={**own, **(tags or {})})

    def start_attempt(self, spec: StageSpec, *, tags: Mapping[str, str], note: str) -> str:
        """Call `start_stage`; log the stage's settings as parameters, its inputs as datasets with digests."""
        own = {"rlhf.key": spec.key, "rlhf.runtime": spec.runtime, "rlhf.image_digest": spec.image_digest or "none"}
        run_id = self.start_stage(spec.stage, attempt=spec.attempt, tags={**own, **tags, _NOTE_TAG: _shortened(note)})
        params = {**spec.config.model_dump(mode="json", exclude={"stage"}), "seed": spec.seed}
        params |= {"batch": spec.batch.model_dump(), "profile": spec.profile.name}
        params["distribution"] = spec.profile.distribution
        self.log_params(run_id, params)
        self.log_inputs(run_id, spec.inputs)
        return run_id

    def finish_stage(self, run_id: str, *, succeeded: bool) -> None:
        """Close a child run."""
        self._end(run_id, "FINISHED" if succeeded else "FAILED")

    def finish_pipeline(self, status: RunStatus) -> None:
        """Close the parent run and child runs still open; deliver what waits, and log what could not be delivered."""
        self.close_open_runs(but=self._parent, time_ms=self._now_ms())
        self._end(self._parent, status)
        self._start.wait(limit_s=_START_LIMIT_S)
        if self.deliver_pending():
            logger.warning(
                "MLflow at %s was not told everything: %d parts of runs with %d points of curves wait in %s. They go "
                "out with the next run in this folder.",
                self.uri,
                self.pending,
                self.pending_points,
                self._file.path,
            )
        self.close()

    def log_params(self, run_id: str, params: Mapping[str, object]) -> None:
        """Log parameters; a nested mapping becomes dotted names."""
        with self.change(run_id) as run:
            run.params |= flat_params(params)

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags."""
        with self.change(run_id) as run:
            run.tags |= tags

    def set_note(self, run_id: str, markdown: str) -> None:
        """Show a text on top of the run's page."""
        self.set_tags(run_id, {_NOTE_TAG: _shortened(markdown)})

    def log_inputs(self, run_id: str, inputs: Sequence[StageInput]) -> None:
        """Name what a stage reads, with digests, as datasets of the run."""
        with self.change(run_id) as run:
            run.datasets += tuple(dataset_use(item) for item in inputs)

    def log_lineage(self, run_id: str, lineage: Iterable[LineageEntry], *, output_digest: str) -> None:
        """Tag the run with the whole digests of its inputs and its output."""
        tags = {f"lineage.input.{item.name}": f"{item.digest} {item.origin}".strip() for item in lineage}
        self.set_tags(run_id, {**tags, "lineage.output": output_digest})

    def log_final_metrics(self, run_id: str, metrics: Iterable[Metric]) -> None:
        """Log a stage's figures as `final/<name>`, with `_ci_low` and `_ci_high`; units and counts in a table.

        The prefix keeps them apart from curves of the same name.
        """
        known = tuple(metrics)
        figures = {
            f"final/{metric.name}{suffix}": value
            for metric in known
            for suffix, value in (("", metric.value), ("_ci_low", metric.ci_low), ("_ci_high", metric.ci_high))
            if value is not None
        }
        if figures:
            self._log_figures(run_id, figures)
            columns = list(Metric.model_fields)
            self.log_table(run_id, columns, [[getattr(m, name) for name in columns] for m in known], "figures.json")

    def log_headline(self, figures: Mapping[str, float]) -> None:
        """Put the figures that runs are compared by on the parent run, where the table of runs shows them."""
        self._log_figures(self._parent, figures)

    def log_report(self, folder: Path) -> None:
        """Put the report on the parent run: as files, and its Markdown on top of the page."""
        for name in (REPORT_HTML_FILE, REPORT_MARKDOWN_FILE):
            self.log_file(self._parent, folder / name, folder="report")
        try:
            self.set_note(self._parent, (folder / REPORT_MARKDOWN_FILE).read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            self.refuse(f"The report's text: {error}")

    def _page(self, run_id: str, below: str) -> str:
        real = self.real_id(run_id)
        if not self.uri.startswith("http") or not real or real.startswith(HANDLE_PREFIX):
            return ""
        return f"{self.uri}/#/experiments/{self.experiment_id}/runs/{real}{below}?{FOR_TRAINING}"

    def _opened(self, name: str, *, parent: str, tags: Mapping[str, str]) -> str:
        own = {"mlflow.user": _user(), "mlflow.source.type": "LOCAL", "mlflow.source.name": "rlhf-flows"}
        run = UndeliveredRun(
            handle=f"{HANDLE_PREFIX}{uuid.uuid4().hex}",
            experiment=self._experiment,
            name=name,
            parent=parent,
            start_time_ms=self._now_ms(),
            tags={**own, **tags},
        )
        return self.open(run)

    def _log_figures(self, run_id: str, figures: Mapping[str, float]) -> None:
        with self.change(run_id) as run:
            run.figures |= {name: (value, self._now_ms()) for name, value in figures.items()}

    def _now_ms(self) -> int:
        return self._clock_starts_ms + int(time.monotonic() * 1000)

    def _end(self, run_id: str, status: RunStatus) -> None:
        with self.change(run_id) as run:
            run.close(status, self._now_ms())


def _shortened(note: str) -> str:
    return note if len(note) <= _NOTE_CHARACTERS else note[:_NOTE_CHARACTERS] + "\n\n…"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return str(os.getuid())
