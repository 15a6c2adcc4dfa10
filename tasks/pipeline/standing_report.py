"""The report that is still valid: every stage of the run has its verified artifact, and nothing shown has changed.

Then `rlhf run` has nothing to do, and starts neither servers nor programs.
"""

from pathlib import Path

from containers.contracts.names import REPORT_HTML_FILE, REPORT_INPUT_FILE, StageName
from containers.contracts.records import PipelineRecord, StageRecord
from containers.contracts.spec import ArtifactRef
from tasks.config.loading import LoadedConfig
from tasks.pipeline.lookup import finished_artifacts
from tasks.store.decisions import decision_stands

_WITHOUT_ARTIFACT = (StageName.CHECK_SYSTEM, StageName.WRITE_REPORT)


def standing_report(loaded: LoadedConfig) -> PipelineRecord | None:
    """The record of the run's last report, with reused stages; None if a new run would have something to do."""
    record = last_record(loaded.config.output_dir)
    if record is None or not _was_complete(record) or record.config_yaml != loaded.yaml_text:
        return None
    store_dir = loaded.config.store_dir.resolve()
    if not all(decision_stands(gate, store_dir) for gate in record.gates):
        return None
    found = finished_artifacts(loaded.config)
    if found is None:
        return None
    recorded = {stage.stage: stage for stage in record.stages if stage.stage not in _WITHOUT_ARTIFACT}
    if {stage: record.key for stage, record in recorded.items()} != {stage: made.key for stage, made in found.items()}:
        return None
    own = loaded.config.output_dir / "reports" / record.run_id / REPORT_HTML_FILE
    if not _same_file(loaded.config.output_dir / REPORT_HTML_FILE, own):
        return None
    stages = tuple(_reused(recorded[stage], made) for stage, made in found.items())
    return record.model_copy(update={"stages": stages})


def last_record(output_dir: Path, *, but: str = "") -> PipelineRecord | None:
    """Record of the newest run of this folder (run ids begin with the time); None if no run wrote a report.

    Args:
        but: id of a run that does not count.
    """
    written = (path for path in (output_dir / "reports").glob(f"*/{REPORT_INPUT_FILE}") if path.parent.name != but)
    newest = max(written, key=lambda path: path.parent.name, default=None)
    try:
        return None if newest is None else PipelineRecord.model_validate_json(newest.read_bytes())
    except (OSError, ValueError):
        return None


def _was_complete(record: PipelineRecord) -> bool:
    done = all(stage.status in ("ran", "reused") for stage in record.stages)
    return done and bool(record.gates) and all(gate.opens for gate in record.gates)


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def _reused(before: StageRecord, made: ArtifactRef) -> StageRecord:
    return before.model_copy(update={"status": "reused", "path": made.path, "digest": made.digest, "message": ""})
