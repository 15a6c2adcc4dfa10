"""The top of the page: the run's outcome in one sentence, the main figures, and the DAG."""

from dataclasses import dataclass
from typing import Literal

from containers.contracts.certificate import VALIDATION
from containers.contracts.champions import RunDecision
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.pipeline import STAGE_FACTS
from containers.contracts.records import SCORE_TOLERANCE, GateVerdict, StageRecord
from containers.formatting import duration, humanize, interval, one_line, quantity
from containers.report.champions import decision_figures, decision_outcome, decision_statements
from containers.report.gates import (
    GATE_STAGES,
    MESSAGE_LIMIT,
    Statement,
    Tone,
    gate_outcome,
    gate_statement,
    sentence,
)
from containers.report.inputs import ReportInputs
from containers.report.sections import stage_duration, stage_note

_STATUS_TONES: dict[str, Tone] = {"ran": "good", "reused": "good", "failed": "bad", "skipped": "plain"}
_WORST_FIRST: tuple[Tone, ...] = ("bad", "warn", "plain", "good")


@dataclass(frozen=True)
class Verdict:
    """The banner: one sentence, and what a reader must know before reading on."""

    tone: Tone
    headline: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """One main figure; `value` is empty where there is none, and `detail` then says why."""

    label: str
    term: str
    value: str = ""
    interval: str = ""
    detail: str = ""
    origin: Literal["measured", "estimated"] = "measured"


@dataclass(frozen=True)
class Node:
    """A stage or a gate in the drawing of the DAG."""

    title: str
    status: str
    tone: Tone
    detail: str = ""
    is_gate: bool = False


def run_verdict(inputs: ReportInputs) -> Verdict:
    """Return the run's outcome: the worst statement is the headline, the others follow in order."""
    statements = _statements(inputs)
    first = next(item for tone in _WORST_FIRST for item in statements if item.tone == tone)
    others = [item for item in statements if item is not first]
    texts = [first.detail, *(" ".join(part for part in (item.text, item.detail) if part) for item in others)]
    return Verdict(first.tone, first.text, (*(text for text in texts if text), *inputs.problems))


def headline_cards(inputs: ReportInputs) -> tuple[Card, ...]:
    """Return the main figures, each with unit, sample size, interval and origin."""
    suites = inputs.reward_model.suites if inputs.reward_model else ()
    accuracy = next((suite.accuracy for suite in suites if suite.name == VALIDATION), None)
    policy = inputs.policy
    judged, trained = StageName.EVALUATE_REWARD_MODEL, StageName.EVALUATE_POLICY
    of_policy = (
        _card(
            "Reward gain over the reference", "reward gain", policy.reward_difference if policy else None,
            noun="held-out prompts", absent=absence(inputs, trained), signed=True,
        ),
        _card(
            "Win rate against the reference", "win rate", policy.win_rate if policy else None,
            noun="held-out prompts", absent=absence(inputs, trained),
        ),
        _card(
            "KL to the reference", "KL", policy.kl if policy else None,
            noun="held-out prompts", absent=absence(inputs, trained),
        ),
    )  # fmt: skip
    is_about_reward_model_only = bool(inputs.decisions) and policy is None
    return (
        *(
            Card(figure.label, "champion", figure.value, figure.interval, figure.detail)
            for figure in decision_figures(inputs)
        ),
        _card("Reward model accuracy", "accuracy", accuracy, noun="held-out pairs", absent=absence(inputs, judged)),
        *(() if is_about_reward_model_only else of_policy),
        _pairs_card(inputs),
        _duration_card(inputs),
    )


def dag_nodes(inputs: ReportInputs) -> tuple[Node, ...]:
    """Return every stage in order, with the gates between; optional stages outside the run are left out."""
    nodes: list[Node] = []
    for stage in StageName:
        record = inputs.stage(stage)
        if record is None and STAGE_FACTS[stage].is_optional:
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
    if record is not None:
        return f"{stage} left no readable figures"
    return _why_not_started(inputs, stage)


def _statements(inputs: ReportInputs) -> list[Statement]:
    """Return statements about the run, in the order of the pipeline; never empty."""
    pipeline = inputs.pipeline
    failed_checks = ", ".join(check.name for check in pipeline.checks if check.verdict == "failure")
    statements = [
        Statement("bad", f"{record.stage} failed.", one_line(record.message, MESSAGE_LIMIT))
        for record in pipeline.stages
        if record.status == "failed"
    ]
    if failed_checks:
        statements.insert(0, Statement("bad", "The system check failed: nothing was started.", f"{failed_checks}."))
    passed = {verdict.name for verdict in pipeline.gates if verdict.passed and verdict.opens}
    if passed == set(GATE_STAGES.values()):
        statements.append(Statement("good", "All gates passed."))
    statements += [gate_statement(inputs, verdict) for verdict in pipeline.gates]
    statements = [*decision_statements(inputs), *statements]
    if any(item.tone == "bad" for item in statements):
        return statements
    if pipeline.stopped_because and all(verdict.opens for verdict in pipeline.gates):
        why = one_line(pipeline.stopped_because, MESSAGE_LIMIT)
        return [*statements, Statement("bad", "The run stopped before its end.", sentence(why))]
    if inputs.decisions:
        return statements
    if _ends_early_as_asked(inputs):
        statements.append(Statement("plain", f"The run went up to {pipeline.until}, as requested."))
        return statements
    if passed == {"reward_model"} and inputs.gate("policy") is None:
        statements.append(
            Statement("plain", "The policy was not judged.", sentence(absence(inputs, StageName.EVALUATE_POLICY)))
        )
    if not pipeline.gates:
        statements.append(
            Statement("plain", "No gate was reached.", sentence(absence(inputs, StageName.EVALUATE_REWARD_MODEL)))
        )
    return statements


def _ends_early_as_asked(inputs: ReportInputs) -> bool:
    until = inputs.pipeline.until
    return until is not None and until is not StageName.EVALUATE_POLICY


def _card(label: str, term: str, metric: Metric | None, *, noun: str, absent: str, signed: bool = False) -> Card:
    if metric is None:
        return Card(label, term, detail=absent)
    value = quantity(metric.value, metric.unit)
    return Card(
        label,
        term,
        value=f"+{value}" if signed and metric.value >= SCORE_TOLERANCE else value,
        interval=interval(metric),
        detail=f"n = {metric.count:,} {noun}" if metric.count is not None else "",
        origin=metric.origin,
    )


def _pairs_card(inputs: ReportInputs) -> Card:
    funnel = inputs.funnel
    if funnel is None:
        return Card("Preference pairs used", "pair", detail=absence(inputs, StageName.FILTER_DATASET))
    return Card(
        "Preference pairs used",
        "pair",
        value=f"{funnel.train_pairs + funnel.validation_pairs:,} pairs",
        interval=f"{funnel.train_pairs:,} to train, {funnel.validation_pairs:,} held out",
        detail=f"of {funnel.rows_read:,} rows read",
    )


def _duration_card(inputs: ReportInputs) -> Card:
    ran = [
        record
        for record in inputs.pipeline.stages
        if record.status in ("ran", "failed") and record.stage is not StageName.WRITE_REPORT
    ]
    reused = sum(record.status == "reused" for record in inputs.pipeline.stages)
    return Card(
        "Time spent in stages",
        "duration",
        value=duration(sum(record.duration_s for record in ran)),
        interval=f"{len(ran)} run, {reused} reused",
        detail="without the writing of this page",
    )


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
    if record is None:
        return Node(stage, "not started", "plain", detail=_why_not_started(inputs, stage))
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


def _why_not_started(inputs: ReportInputs, stage: StageName) -> str:
    """Return the first cause before `stage` that stopped the run."""
    if any(check.verdict == "failure" for check in inputs.pipeline.checks):
        return "the system check failed"
    for earlier in StageName:
        if earlier is stage:
            break
        record = inputs.stage(earlier)
        if record is not None and record.status == "failed":
            return f"{earlier} failed"
        verdict = inputs.gate(GATE_STAGES[earlier]) if earlier in GATE_STAGES else None
        if verdict is not None and not verdict.opens:
            return verdict.closed_because if verdict.decision else f"the gate of the {verdict.model} closed"
    if _ends_early_as_asked(inputs):
        return "not requested in this run"
    if inputs.pipeline.stopped_because:
        return "the run stopped before"
    return "not part of this run"
