"""Decisions of a run about its challengers, kept beside the report that shows them."""

from pathlib import Path

from containers.contracts.champions import DECISIONS_FILE, RunDecision, RunDecisions
from containers.contracts.digests import write_atomically
from tasks.champions.record import ChampionRecord, Decision
from tasks.run.state import PipelineRun


def report_folder(run: PipelineRun) -> Path:
    """Return the folder of the run's report and of its sources; make it if needed."""
    folder = run.output_dir / "reports" / run.run_id
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def decisions_file(run: PipelineRun) -> Path:
    """Path of the run's decisions; the file does not exist if it made none."""
    return report_folder(run) / DECISIONS_FILE


def keep_decision(run: PipelineRun, decision: RunDecision) -> None:
    """Add a decision to those that the report shows."""
    path = decisions_file(run)
    before = RunDecisions.model_validate_json(path.read_bytes()).decisions if path.is_file() else ()
    write_atomically(path, RunDecisions(decisions=(*before, decision)).model_dump_json(indent=2))


def run_decision(record: ChampionRecord, decision: Decision, *, registry_problem: str) -> RunDecision:
    """Convert a decision from the champions' history for the report.

    Args:
        record: contains the decision.
        registry_problem: why MLflow does not show it yet; empty if it does.
    """
    return RunDecision(
        model=record.name,
        model_kind=record.kind,
        at=decision.at,
        kind=decision.kind,
        text=decision.text,
        challenger=decision.version,
        champion_before=decision.champion_before,
        champion_after=decision.champion_after,
        comparison=decision.comparison,
        registry=registry_problem or _alias(record, decision),
    )


def _alias(record: ChampionRecord, decision: Decision) -> str:
    before, after = decision.champion_before, decision.champion_after
    alias = f"The alias “champion” of {record.name} in MLflow"
    if after is None:
        return f"{alias} names no version, as there is no champion."
    if before is None:
        return f"{alias} names version {after} now; there was none before."
    if before != after:
        return f"{alias} was moved from version {before} to version {after}."
    return f"{alias} was not moved: it names version {after}."
