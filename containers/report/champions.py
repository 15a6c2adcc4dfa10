"""The page's texts about a retraining: which version is champion now, and the figures that decided."""

from dataclasses import dataclass

from containers.contracts.champions import Comparison, RunDecision
from containers.formatting import number
from containers.report.decision_text import (
    CONTEST_HEADERS,
    DECISION_WORDS,
    contest_rows,
    how_compared,
    left_out_lines,
    points,
)
from containers.report.gates import Statement, Tone, sentence
from containers.report.inputs import ReportInputs

_TONES: dict[str, Tone] = {"first": "good", "won": "good"}


@dataclass(frozen=True)
class DecisionBlock:
    """One decision in the section about champions; without `rows`, nothing was compared."""

    title: str
    outcome: str
    tone: Tone
    text: str
    registry: str
    rows: tuple[tuple[tuple[str, str], ...], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DecisionFigure:
    """The figure that decided, for the top of the page."""

    label: str
    value: str
    interval: str
    detail: str


def decision_statements(inputs: ReportInputs) -> list[Statement]:
    """Return a sentence for each decision that names the champion, with the reason behind it."""
    return [
        Statement(_tone(item), _who_reigns(item), " ".join((_why(item), item.registry)).strip())
        for item in inputs.decisions
    ]


def decision_blocks(inputs: ReportInputs) -> tuple[DecisionBlock, ...]:
    """Every decision of the run, in order."""
    return tuple(_block(item) for item in inputs.decisions)


def decision_figures(inputs: ReportInputs) -> tuple[DecisionFigure, ...]:
    """Return challenger minus champion on the frozen set, for each decision with a comparison."""
    return tuple(_figure(item, item.comparison) for item in inputs.decisions if item.comparison is not None)


def decision_outcome(decision: RunDecision) -> tuple[str, Tone]:
    """Return the challenger's outcome in two or three words, and its tone."""
    return DECISION_WORDS[decision.kind], _tone(decision)


def _tone(decision: RunDecision) -> Tone:
    return _TONES.get(decision.kind, "plain")


def _who_reigns(decision: RunDecision) -> str:
    before, after = decision.champion_before, decision.champion_after
    if after is None:
        return f"{decision.model} still has no champion."
    if before == after:
        return f"Version {after} of {decision.model} stays champion."
    return f"Version {after} of {decision.model} is champion now."


def _why(decision: RunDecision) -> str:
    """Return the decision's text without its beginning, which names the champion."""
    return sentence(decision.text.partition(": ")[2] or decision.text)


def _block(decision: RunDecision) -> DecisionBlock:
    rows: tuple[tuple[tuple[str, str], ...], ...] = ()
    notes: tuple[str, ...] = ()
    if decision.comparison is not None:
        rows = tuple(tuple(zip(CONTEST_HEADERS, row, strict=True)) for row in contest_rows(decision.comparison))
        notes = (*left_out_lines(decision.comparison), how_compared(decision.comparison))
    outcome, tone = decision_outcome(decision)
    return DecisionBlock(decision.model, outcome, tone, sentence(decision.text), decision.registry, rows, notes)


def _figure(decision: RunDecision, comparison: Comparison) -> DecisionFigure:
    first = comparison.contests[0]
    label = f"Version {comparison.challenger} against champion {comparison.champion}"
    found = first.difference
    if found is None:
        return DecisionFigure(label, "", "", f"nothing was left of {first.name} to compare on")
    return DecisionFigure(
        label,
        f"{points(found.value)} points",
        f"{points(found.ci_low)} to {points(found.ci_high)}",
        f"{first.measure} on {first.name}, n = {first.count:,}, p = {number(first.p_value)}",
    )
