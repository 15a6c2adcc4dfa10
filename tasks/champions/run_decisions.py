"""What a run decided about its challengers, kept beside its report, which tells it."""

from pathlib import Path

from containers.contracts.champions import DECISIONS_FILE, RunDecision, RunDecisions
from containers.contracts.digests import write_atomically
from tasks.champions.record import ChampionRecord, Decision
from tasks.run.state import PipelineRun


def report_folder(run: PipelineRun) -> Path:
    """Where the run's report lies, and what it is made from; it exists afterwards."""
    folder = run.output_dir / "reports" / run.run_id
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def decisions_file(run: PipelineRun) -> Path:
    """Where the run's decisions stand; no such file where it made none."""
    return report_folder(run) / DECISIONS_FILE


def keep_decision(run: PipelineRun, decision: RunDecision) -> None:
    """Add a decision to those that the report tells."""
    path = decisions_file(run)
    before = RunDecisions.model_validate_json(path.read_bytes()).decisions if path.is_file() else ()
    write_atomically(path, RunDecisions(decisions=(*before, decision)).model_dump_json(indent=2))


def run_decision(record: ChampionRecord, decision: Decision, *, registry_problem: str) -> RunDecision:
    """A decision of the champions' history, for the report.

    Args:
        record: with the decision in it.
        registry_problem: why MLflow does not show it yet; empty where it does.
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
