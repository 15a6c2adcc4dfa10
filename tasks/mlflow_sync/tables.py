"""Tables of an artifact for people: funnel, sample predictions, evaluations, completions. Pure but for reading."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from containers.contracts.certificate import Certificate
from containers.contracts.names import (
    CERTIFICATE_FILE,
    COMPLETIONS_FILE,
    FUNNEL_FILE,
    POLICY_EVALUATION_FILE,
)
from containers.contracts.records import Funnel, Message, PolicyEvaluation, SamplePrediction

logger = logging.getLogger(__name__)

SAMPLE_PREDICTIONS_FILE = "sample_predictions.json"
_MAX_ROWS = 200
_SAMPLES: TypeAdapter[tuple[SamplePrediction, ...]] = TypeAdapter(tuple[SamplePrediction, ...])


@dataclass(frozen=True)
class Table:
    """Rows under column names; `name` is the file's name without its ending."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


def tables_of(folder: Path) -> tuple[Table, ...]:
    """The tables that the known files of an artifact hold; a file that cannot be read is logged and left out."""
    tables = []
    for name, read in _READERS.items():
        path = folder / name
        if path.is_file() and not path.is_symlink():
            try:
                tables.extend(read(path))
            except (OSError, ValueError, KeyError, ImportError) as error:
                logger.warning("%s makes no table: %s", path, error)
    return tuple(table for table in tables if table.rows)


def _funnel(path: Path) -> list[Table]:
    steps = Funnel.model_validate_json(path.read_bytes()).steps
    rows = tuple((step.reason, step.rows_in, step.dropped, step.rows_out) for step in steps)
    return [Table("funnel", ("filter", "rows in", "dropped", "rows out"), rows)]


def _sample_predictions(path: Path) -> list[Table]:
    return [_samples_table("sample_predictions", _SAMPLES.validate_json(path.read_bytes()))]


def _certificate(path: Path) -> list[Table]:
    certificate = Certificate.model_validate_json(path.read_bytes())
    columns = ("suite", "benchmark", "score", "ci low", "ci high", "pair accuracy", "pairs", "ties", "left out")
    rows = tuple(
        (
            suite.name,
            suite.benchmark,
            *((suite.score.value, suite.score.ci_low, suite.score.ci_high) if suite.score else (None,) * 3),
            suite.accuracy.value if suite.accuracy else None,
            suite.num_pairs,
            suite.num_ties,
            suite.num_left_out,
        )
        for suite in certificate.suites
    )
    return [Table("suites", columns, rows), _samples_table("scored_samples", certificate.samples)]


def _policy_evaluation(path: Path) -> list[Table]:
    columns = ("prompt", "policy", "reference", "reward of policy", "reward of reference")
    rows = tuple(
        (_dialogue(item.prompt), item.policy, item.reference, item.reward_policy, item.reward_reference)
        for item in PolicyEvaluation.model_validate_json(path.read_bytes()).samples
    )
    return [Table("side_by_side", columns, rows)]


def _completions(path: Path) -> list[Table]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    for batch in file.iter_batches(batch_size=_MAX_ROWS):
        columns = tuple(str(name) for name in batch.schema.names)
        rows = tuple(tuple(row[name] for name in columns) for row in batch.to_pylist())
        return [Table("completions", columns, rows)]
    return []


def _samples_table(name: str, samples: tuple[SamplePrediction, ...]) -> Table:
    columns = ("prompt", "chosen", "rejected", "score of chosen", "score of rejected", "margin", "domain")
    rows = tuple(
        (
            _dialogue(item.prompt),
            item.chosen,
            item.rejected,
            item.score_chosen,
            item.score_rejected,
            item.score_chosen - item.score_rejected,
            item.domain,
        )
        for item in samples
    )
    return Table(name, columns, rows)


def _dialogue(messages: tuple[Message, ...]) -> str:
    return "\n\n".join(f"{message.role}: {message.content}" for message in messages)


_READERS: dict[str, Callable[[Path], list[Table]]] = {
    FUNNEL_FILE: _funnel,
    SAMPLE_PREDICTIONS_FILE: _sample_predictions,
    CERTIFICATE_FILE: _certificate,
    POLICY_EVALUATION_FILE: _policy_evaluation,
    COMPLETIONS_FILE: _completions,
}
