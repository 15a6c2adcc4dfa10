"""What ran: the drawing of the DAG, a row for each stage, and why a stage left nothing."""

from containers.contracts.champions import RunDecision
from containers.contracts.names import StageName
from containers.contracts.outcome import StageFailure
from containers.contracts.pipeline import STAGE_FACTS, Devices
from containers.contracts.records import FIRST_TIME, GateVerdict, StageRecord
from containers.document.links import mlflow_run_url
from containers.document.model import (
    Block,
    Code,
    Dag,
    Facts,
    Node,
    Note,
    Section,
    Table,
    Text,
    Tone,
    figures_table,
    heads,
)
from containers.formatting import MISSING, duration, humanize, moment, one_line, short_digest
from containers.report.champions import decision_outcome
from containers.report.gates import GATE_STAGES, MESSAGE_LIMIT, gate_outcome
from containers.report.inputs import ReportInputs
from containers.report.training import figure_label

_STATUS_TONES: dict[str, Tone] = {
    "ran": "good",
    "reused": "good",
    "failed": "bad",
    "skipped": "plain",
    "waits": "warn",
}


def stages_section(inputs: ReportInputs) -> Section:
    """Return all stages of the run in order, drawn and as a table."""
    lead = (
        "All stages in order. A reused stage had already finished with equal inputs and code; each of its files was "
        "verified."
    )
    where = " An artifact is in artifacts/STAGE/KEY; the table has the first letters of the key."
    stages = inputs.pipeline.stages
    return Section(
        "What ran",
        (Note(lead + (where if stages else ""), "lead"), Dag(dag_nodes(inputs)), stages_table(inputs)),
        anchor="stages",
        short="What ran",
    )


def stages_table(inputs: ReportInputs) -> Table:
    """A row for each stage that the run reached."""
    costs = ("GPU time",) if any(gpu_seconds(inputs, record) for record in inputs.pipeline.stages) else ()
    figures = ("Duration", *costs, "Attempts")
    columns = (
        *heads("Stage", "Status"), *heads(*figures, numbers=len(figures)), *heads("Runtime", "MLflow", "Artifact")
    )  # fmt: skip
    rows = tuple(
        (
            record.stage.value,
            _status(inputs, record),
            stage_duration(record),
            *(duration(seconds) if (seconds := gpu_seconds(inputs, record)) else None for _ in costs),
            record.attempts or None,
            runtime_text(record),
            _mlflow(inputs.pipeline.mlflow_url, record.mlflow_run_id),
            Text(record.key[:12], is_code=True, hint=record.path) if record.path and record.key else None,
        )
        for record in inputs.pipeline.stages
    )
    return Table(columns, rows, empty="No stage was started.")


def stage_section(record: StageRecord) -> Section:
    """Return the record of one stage."""
    facts: tuple[tuple[str, str | int | Text], ...] = (
        ("Status", Text(record.status, tone=_STATUS_TONES[record.status])),
        ("Why", record.message),
        ("Duration", duration(record.duration_s) if record.status in ("ran", "failed") else ""),
        ("Attempts", record.attempts or ""),
        ("Runtime", record.runtime),
        ("Image", short_digest(record.image_digest)),
        ("Artifact", record.path),
        ("Digest", short_digest(record.digest)),
        ("MLflow run", record.mlflow_run_id),
    )
    figures = (figures_table([(figure_label(item.name), item) for item in record.metrics]),) if record.metrics else ()
    return Section(humanize(record.stage), (Facts(facts), *figures))


def failure_section(failure: StageFailure, *, log: str) -> Section:
    """Return why a stage failed, what to do, and the evidence from its log."""
    blocks = (Note(failure.message), Code("\n".join(failure.evidence), limit=20_000), Note(f"Full log: {log}"))
    return Section(f"{failure.stage} failed: {failure.kind.value}", blocks)


def nothing(inputs: ReportInputs, stage: StageName) -> tuple[Block, ...]:
    """Return, in place of a stage's figures, why there are none."""
    return (Note(f"Nothing to show: {absence(inputs, stage)}.", "quiet"),)


def dag_nodes(inputs: ReportInputs) -> tuple[Node, ...]:
    """Return every stage of the run in order, with the gates between, and those after its requested end."""
    nodes: list[Node] = []
    for stage in StageName:
        record = inputs.stage(stage)
        if record is None and (STAGE_FACTS[stage].is_optional or not is_part(inputs, stage)):
            continue
        nodes.append(_check_node(inputs) if stage is StageName.CHECK_SYSTEM else _stage_node(inputs, stage, record))
        if stage in GATE_STAGES:
            nodes.append(_gate_node(f"{humanize(GATE_STAGES[stage])} gate", inputs.gate(GATE_STAGES[stage])))
            nodes += [_champion_node(item) for item in inputs.decisions if item.model_kind == GATE_STAGES[stage]]
    return tuple(nodes)


def absence(inputs: ReportInputs, stage: StageName) -> str:
    """Return why there is nothing from that stage, as text."""
    record = inputs.stage(stage)
    if record is not None and record.status == "failed":
        return f"{stage} failed"
    if record is not None and record.status == "skipped":
        return one_line(record.message, MESSAGE_LIMIT) or f"{stage} was skipped"
    if record is not None and record.status == "waits":
        return f"{stage} waits for its judge"
    if record is not None:
        return f"{stage} left no readable figures"
    return _why_not_started(inputs, stage)


def stage_duration(record: StageRecord) -> str:
    """How long the stage's last attempt took; a dash where it did not run, or is still writing this page."""
    timed = record.status in ("ran", "failed") and record.stage is not StageName.WRITE_REPORT
    return duration(record.duration_s) if timed else MISSING


def gpu_seconds(inputs: ReportInputs, record: StageRecord) -> float:
    """Seconds times GPUs that the stage's last attempt had in this run; 0 on a CPU, and where it did not run."""
    measured, devices = inputs.measured.get(record.stage.value), STAGE_FACTS[record.stage].devices
    if measured is None or record.status not in ("ran", "failed") or devices is Devices.NONE:
        return 0.0
    num_gpus = min(1, len(measured.gpus)) if devices is Devices.ONE_GPU else len(measured.gpus)
    return num_gpus * record.duration_s


def stage_note(inputs: ReportInputs, record: StageRecord) -> str:
    """Return a note beside the status: when a reused artifact was made, from which step an attempt resumed.

    The reason why a stage failed or was skipped is its message, not its note.
    """
    if record.status == "reused":
        manifest = inputs.manifests.get(record.stage)
        changes = "; ".join(fallback.change for fallback in manifest.ladder) if manifest else ""
        made = f"made {moment(manifest.created_at)}" if manifest else record.message
        return f"{made}, as planned but for: {changes}" if changes else made
    info = inputs.training.get(record.stage) if record.status == "ran" else None
    notes = [
        f"resumed from step {info.resumed_from_step:,}" if info and info.resumed_from_step is not None else "",
        "the duration is that of the last attempt" if record.attempts > 1 else "",
        record.message if record.status == "ran" and record.message != FIRST_TIME else "",
    ]
    return "; ".join(note for note in notes if note)


def runtime_text(record: StageRecord) -> str:
    """`docker 1f2e…` (the image) or `process`; a dash where the stage did not run."""
    image = short_digest(record.image_digest).removeprefix("sha256:")
    return " ".join(part for part in (record.runtime, image) if part) or MISSING


def ends_early_as_asked(inputs: ReportInputs) -> bool:
    """Whether the run was to end before its last stage."""
    until = inputs.pipeline.until
    return until is not None and until is not StageName.EVALUATE_POLICY


def _status(inputs: ReportInputs, record: StageRecord) -> Text:
    why = record.message if record.status in ("failed", "skipped", "waits") else ""
    note = "; ".join(part for part in (why, stage_note(inputs, record)) if part)
    return Text(record.status, sub=note, tone=_STATUS_TONES[record.status])


def _mlflow(pipeline_url: str, run_id: str) -> Text | None:
    return Text(f"run {run_id[:8]}", link=mlflow_run_url(pipeline_url, run_id)) if run_id else None


def _check_node(inputs: ReportInputs) -> Node:
    verdicts = [check.verdict for check in inputs.pipeline.checks]
    if not verdicts:
        return Node("check_system", "not recorded", "plain")
    tone: Tone = "bad" if "failure" in verdicts else "warn" if "warning" in verdicts else "good"
    words = {"bad": "failed", "warn": f"{verdicts.count('warning')} warned", "good": "ok", "plain": ""}
    return Node("check_system", words[tone], tone, detail=f"{len(verdicts)} checks")


def _stage_node(inputs: ReportInputs, stage: StageName, record: StageRecord | None) -> Node:
    if stage is StageName.WRITE_REPORT:
        return Node(stage, "this page", "good")
    if record is None or record.status == "skipped":
        return Node(stage, "not started", "plain", detail=absence(inputs, stage))
    details = [stage_duration(record), record.runtime] if record.status in ("ran", "failed") else []
    if record.status == "reused":
        details = [stage_note(inputs, record).partition(",")[0]]  # the day is enough here
    detail = " · ".join(detail for detail in details if detail)
    return Node(stage, record.status, _STATUS_TONES[record.status], detail=detail)


def _gate_node(title: str, verdict: GateVerdict | None) -> Node:
    if verdict is None:
        return Node(title, "not reached", "plain", is_gate=True)
    outcome, tone = gate_outcome(verdict)
    short = {"not passed, waived": "waived", "not passed": "closed", "passed and approved": "approved"}
    return Node(title, short.get(outcome, outcome), tone, is_gate=True)


def _champion_node(decision: RunDecision) -> Node:
    outcome, tone = decision_outcome(decision)
    reigns = f"version {decision.champion_after}" if decision.champion_after is not None else "none yet"
    return Node(f"{humanize(decision.model_kind)} champion", outcome, tone, detail=reigns, is_gate=True)


def is_part(inputs: ReportInputs, stage: StageName) -> bool:
    """Whether the run has that stage, or was to end before it."""
    at_the_edges = stage in (StageName.CHECK_SYSTEM, StageName.WRITE_REPORT)
    return at_the_edges or inputs.stage(stage) is not None or _is_after_the_end(inputs, stage)


def _is_after_the_end(inputs: ReportInputs, stage: StageName) -> bool:
    until, order = inputs.pipeline.until, list(StageName)
    return until is not None and order.index(stage) > order.index(until)


def _why_not_started(inputs: ReportInputs, stage: StageName) -> str:
    """Return why the records have no such stage; a stage that the run did not reach has a record."""
    return "not requested in this run" if _is_after_the_end(inputs, stage) else "not part of this run"
