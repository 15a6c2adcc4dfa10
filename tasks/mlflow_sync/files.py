"""Files for a run's page in MLflow, some also as searchable tables. Large weights are named, not uploaded."""

import json
import logging
import posixpath
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter

from containers.contracts.certificate import Certificate
from containers.contracts.digests import UnsafeFileError, regular_files
from containers.contracts.funnel import Funnel
from containers.contracts.names import (
    ADAPTER_FOLDER,
    CERTIFICATE_FILE,
    COMPLETIONS_FILE,
    FUNNEL_FILE,
    POLICY_EVALUATION_FILE,
    SETS_EVALUATION_FILE,
)
from containers.contracts.records import PolicyEvaluation, SamplePrediction
from containers.document.tables import NamedTable, named_tables
from containers.evals.sets.records import SetsEvaluation
from containers.report.data import steps_table
from containers.report.policy.samples import scored_samples, side_by_side
from containers.report.policy.sets import sets_blocks
from containers.report.suites import suites_table
from tasks.mlflow_sync.outbox import Outbox
from tasks.mlflow_sync.undelivered import FileSource

logger = logging.getLogger(__name__)

SAMPLE_PREDICTIONS_FILE = "sample_predictions.json"
_MAX_ROWS = 200
# Of the upload of one folder; the rest waits.
_UPLOAD_LIMIT_S = 30.0
_SAMPLES: TypeAdapter[tuple[SamplePrediction, ...]] = TypeAdapter(tuple[SamplePrediction, ...])
MIB = 1024**2


class RunFiles(Outbox):
    """An outbox with the files of the runs' pages. No method raises; what cannot be sent now waits.

    Attributes:
        largest_file_bytes: larger files are named, not uploaded; adapters always are.
    """

    largest_file_bytes = 64 * MIB

    @cached_property
    def _tables(self) -> dict[str, list[str]]:
        """The tables of each run."""
        return {}

    def log_text(self, run_id: str, text: str, file: str) -> None:
        """Keep a text as an artifact file."""
        with self.change(run_id) as run:
            run.files[file] = FileSource(text=text)

    def log_table(self, run_id: str, columns: Sequence[str], rows: Sequence[Sequence[object]], file: str) -> None:
        """Keep rows as a table that the run page shows; `file` ends in .json."""
        table = {"columns": list(columns), "data": [list(row) for row in rows]}
        self.log_text(run_id, json.dumps(table, indent=2, ensure_ascii=False, default=str), file)
        tables = self._tables.setdefault(run_id, [])
        if file not in tables:
            tables.append(file)
        with self.change(run_id) as run:
            run.tags["mlflow.loggedArtifacts"] = json.dumps([{"path": path, "type": "table"} for path in tables])

    def log_file(self, run_id: str, path: Path, *, folder: str = "") -> None:
        """Upload a file if it exists and is not too large."""
        if _size_bytes(path) <= self.largest_file_bytes and path.is_file() and not path.is_symlink():
            with self.change(run_id) as run:
                run.files[posixpath.join(folder, path.name)] = FileSource(path=str(path.resolve()))

    def log_artifact_folder(self, run_id: str, folder: Path, *, under: str = "output") -> None:
        """Upload an artifact, and show its tables; `NOT_UPLOADED.txt` lists the paths of files that are too large.

        A folder with a symbolic link, FIFO or device in it is not uploaded at all.
        """
        try:
            files = list(regular_files(folder))
        except (UnsafeFileError, OSError) as error:
            self.refuse(f"{folder} is not uploaded: {error}")
            return
        sources, left_out = {}, []
        for path in files:
            relative, size = path.relative_to(folder), _size_bytes(path)
            if size > self.largest_file_bytes and ADAPTER_FOLDER not in relative.parts[:-1]:
                left_out.append(f"{size:>16,} bytes  {path.resolve()}")
            else:
                sources[f"{under}/{relative.as_posix()}"] = FileSource(path=str(path.resolve()))
        if left_out:
            head = f"Larger than {self.largest_file_bytes / MIB:.0f} MiB each, so they stay where they are:"
            sources[f"{under}/NOT_UPLOADED.txt"] = FileSource(text="\n".join((head, *left_out, "")))
        with self.change(run_id, limit_s=_UPLOAD_LIMIT_S) as run:
            run.files |= sources
        for table in tables_of(folder):
            self.log_table(run_id, table.columns, table.rows, f"tables/{table.name}.json")


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tables_of(folder: Path) -> tuple[NamedTable, ...]:
    """Return the tables in the known files of an artifact; a file that cannot be read is logged and left out."""
    tables: list[NamedTable] = []
    for name, read in _READERS.items():
        path = folder / name
        if path.is_file() and not path.is_symlink():
            try:
                tables.extend(read(path))
            except (OSError, ValueError, KeyError, ImportError) as error:
                logger.warning("%s is not shown as a table: %s", path, error)
    return tuple(table for table in tables if table.rows)


def _funnel(path: Path) -> tuple[NamedTable, ...]:
    return named_tables(steps_table(Funnel.model_validate_json(path.read_bytes())))


def _sample_predictions(path: Path) -> tuple[NamedTable, ...]:
    return named_tables(scored_samples(_SAMPLES.validate_json(path.read_bytes()), name="sample_predictions"))


def _certificate(path: Path) -> tuple[NamedTable, ...]:
    certificate = Certificate.model_validate_json(path.read_bytes())
    return named_tables(suites_table(certificate.suites), scored_samples(certificate.samples))


def _policy_evaluation(path: Path) -> tuple[NamedTable, ...]:
    return named_tables(side_by_side(PolicyEvaluation.model_validate_json(path.read_bytes()).samples))


def _sets_evaluation(path: Path) -> tuple[NamedTable, ...]:
    return named_tables(*sets_blocks(SetsEvaluation.model_validate_json(path.read_bytes())))


def _completions(path: Path) -> tuple[NamedTable, ...]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    for batch in file.iter_batches(batch_size=_MAX_ROWS):
        columns = tuple(str(name) for name in batch.schema.names)
        rows = tuple(tuple(row[name] for name in columns) for row in batch.to_pylist())
        return (NamedTable("completions", columns, rows),)
    return ()


_READERS: dict[str, Callable[[Path], tuple[NamedTable, ...]]] = {
    FUNNEL_FILE: _funnel,
    SAMPLE_PREDICTIONS_FILE: _sample_predictions,
    CERTIFICATE_FILE: _certificate,
    POLICY_EVALUATION_FILE: _policy_evaluation,
    SETS_EVALUATION_FILE: _sets_evaluation,
    COMPLETIONS_FILE: _completions,
}
