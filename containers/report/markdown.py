"""The report for the Prefect page: the verdict, the figures, the stages and gates as short tables."""

from containers.contracts.records import StageRecord
from containers.formatting import MISSING, markdown_table, markdown_text, one_line
from containers.report.decision_text import decision_markdown
from containers.report.gates import gate_lines
from containers.report.inputs import ReportInputs
from containers.report.sections import stage_duration, stage_note
from containers.report.verdict import headline_cards, run_verdict

_MARKS = {"good": "✅", "warn": "⚠️", "bad": "❌", "plain": "ℹ️"}


def report_markdown(inputs: ReportInputs, *, title: str) -> str:
    """Markdown without images or links by path; foreign text is escaped."""
    pipeline, verdict = inputs.pipeline, run_verdict(inputs)
    cards = markdown_table(
        ("Figure", "Value", "Interval", "Based on", "Origin"),
        [
            (card.label, card.value or MISSING, card.interval, card.detail, card.origin if card.value else "")
            for card in headline_cards(inputs)
        ],
        right=(1,),
    )
    stages = markdown_table(
        ("Stage", "Status", "Duration", "Note"),
        [
            (
                record.stage,
                record.status,
                stage_duration(record),
                _note(inputs, record),
            )
            for record in pipeline.stages
        ],
        right=(2,),
    )
    gates = markdown_table(
        ("Gate", "Rule", "Wanted", "Found", "Verdict"),
        [
            (gate.name, rule.name, rule.wanted, rule.found, "passed" if rule.passed else "missed")
            for gate in pipeline.gates
            for rule in gate.rules
        ],
    )
    decided = "\n".join(f"- **{gate}**: {markdown_text(said, limit=900)}" for gate, said in gate_lines(inputs))
    parts = [
        f"# {markdown_text(title)}: {markdown_text(pipeline.run_name)}",
        f"{_MARKS[verdict.tone]} **{markdown_text(verdict.headline)}**",
        *(markdown_text(detail, limit=900) for detail in verdict.details),
        cards,
        *(decision_markdown(decision).rstrip() for decision in inputs.decisions),
        f"## Stages\n\n{stages}" if stages else "",
        f"## Gates\n\n{decided}\n\n{gates}" if gates else "",
        _repeat(inputs),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _note(inputs: ReportInputs, record: StageRecord) -> str:
    why = record.message if record.status in ("failed", "skipped") else ""
    return "; ".join(part for part in (why, stage_note(inputs, record)) if part)


def _repeat(inputs: ReportInputs) -> str:
    pipeline = inputs.pipeline
    rows = (
        ("Dataset", pipeline.dataset_origin),
        ("Base model", pipeline.base_model_origin),
        ("Command", one_line(pipeline.command, 280)),
        ("Git commit", pipeline.git_commit),
        ("Seed", f"{inputs.seed}"),
        ("Hardware profile", pipeline.profile_name),
    )
    table = markdown_table(("", "Value"), [(name, value) for name, value in rows if value])
    return f"## How to repeat\n\n{table}\n\nThe whole page with plots and samples is `report.html`."
