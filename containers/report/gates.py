"""The page's texts about each gate: its rules, who decided, when and why, and decisions that are still open."""

from collections.abc import Sequence
from dataclasses import dataclass

from containers.contracts.names import StageName
from containers.contracts.pipeline import JUDGED_BY
from containers.contracts.records import GateDecision, GateRule, GateVerdict
from containers.document.model import Facts, Note, Pairs, Section, Table, Text, Tone, heads
from containers.formatting import moment, one_line
from containers.report.inputs import ReportInputs

GATE_STAGES = {stage: model for model, stage in JUDGED_BY.items()}
MESSAGE_LIMIT = 600
_NAME_LIMIT = 80
_MAX_EARLIER = 5
_WORDS: dict[str, tuple[str, Tone]] = {
    "approved": ("passed and approved", "good"),
    "waived": ("not passed, waived", "warn"),
    "rejected": ("rejected", "bad"),
    "waiting": ("waits for a decision", "warn"),
    "timed_out": ("not decided in time", "bad"),
}


@dataclass(frozen=True)
class Statement:
    """One thing that happened, and the facts behind it."""

    tone: Tone
    text: str
    detail: str = ""


def gate_outcome(verdict: GateVerdict) -> tuple[str, Tone]:
    """Return a gate's outcome in a few words, and its tone."""
    if verdict.decision is not None:
        words, tone = _WORDS[verdict.decision.outcome]
        contradicts = verdict.decision.outcome in ("approved", "waived") and not verdict.opens
        return ("decided against its figures", "bad") if contradicts else (words, tone)
    if verdict.passed:
        return "passed", "good"
    return ("not passed, waived", "warn") if verdict.opens else ("not passed", "bad")


def gate_statement(inputs: ReportInputs, verdict: GateVerdict) -> Statement:
    """Return a gate's outcome as a sentence, with the figures."""
    name = f"The {verdict.model}"
    figures = _figures(verdict.rules)
    if verdict.decision is not None and verdict.decision.outcome != "waived":
        return _decided(inputs, verdict, verdict.decision, figures)
    if verdict.passed:
        return Statement("good", f"{name} passed its gate.", f"{figures} {verdict.advice}".rstrip())
    if verdict.opens:
        detail = f"{_waiver(verdict)} {figures} {verdict.advice}".rstrip()
        return Statement("warn", f"{name} did not pass its gate, and the gate was waived.", detail)
    detail = f"{figures} {_warning(verdict)} {verdict.advice}"
    return Statement("bad", f"{name} did not pass its gate{_stopped(inputs, verdict)}.", " ".join(detail.split()))


def _figures(rules: Sequence[GateRule]) -> str:
    """Return as many rules as a banner holds, missed ones first; the gate's own table has all of them."""
    ordered = [f"{rule.name}: {rule.found}, wanted {rule.wanted}" for rule in sorted(rules, key=lambda r: r.passed)]
    shown = ordered[:1]
    for text in ordered[1:]:
        if len("; ".join((*shown, text))) > MESSAGE_LIMIT:
            break
        shown.append(text)
    left = len(ordered) - len(shown)
    more = f" {left} more {'rule is' if left == 1 else 'rules are'} in the gate's table." if left else ""
    return sentence(one_line("; ".join(shown), MESSAGE_LIMIT)) + more


def gate_section(verdict: GateVerdict) -> Section:
    """Return a gate with its rules, who decided, when and why, and what to do while it waits."""
    outcome, tone = gate_outcome(verdict)
    decision = verdict.decision
    caveat = ""
    if decision is None and verdict.opens and not verdict.passed:
        caveat = _waiver(verdict)
    elif decision is not None and decision.outcome == "waiting":
        caveat = f"{_how_to_decide(verdict)} {_deadline(decision)}"
    elif decision is not None and decision.outcome == "timed_out":
        caveat = "Silence counts as a rejection. A late decision still counts: rlhf approve, then start the run again."
    return Section(
        f"Gate of the {verdict.model}",
        (
            rules_table(verdict.rules),
            *((Note(caveat, "caveat"),) if caveat else ()),
            *((Note(verdict.advice),) if verdict.advice else ()),
            *((Facts(_facts(decision)),) if decision is not None else ()),
        ),
        outcome=Text(outcome, tone=tone),
    )


def rules_table(rules: Sequence[GateRule]) -> Table:
    """What a gate demands, and the figures found."""
    passed, missed = Text("passed", tone="good"), Text("missed", tone="bad")
    # The verdict before the long texts: Prefect's pages are narrow.
    rows = tuple((rule.name, passed if rule.passed else missed, rule.wanted, rule.found) for rule in rules)
    return Table(heads("Rule", "Verdict", "Wanted", "Found"), rows)


def sentence(text: str) -> str:
    """Return `text` with a full stop and a capital, but no capital for a stage's name; empty for an empty text."""
    if not text:
        return ""
    start = text[:1] if text.split()[0] in list(StageName) else text[:1].upper()
    return f"{start}{text[1:].rstrip('.')}."


def _decided(inputs: ReportInputs, verdict: GateVerdict, decision: GateDecision, figures: str) -> Statement:
    name, who = f"The {verdict.model}", one_line(decision.by, _NAME_LIMIT) or "an unnamed person"
    reason = sentence(one_line(decision.reason, MESSAGE_LIMIT))
    when = f" on {moment(decision.at)}" if decision.at else ""
    because = f"{who} said{when}: {reason}" if reason else f"Decided{when}."
    stopped = _stopped(inputs, verdict)
    if decision.outcome == "approved" and verdict.opens:
        return Statement("good", f"{name} passed its gate and was approved by {who}.", f"{figures} {because}")
    if decision.outcome == "rejected":
        return Statement(
            "bad", f"{name} was rejected by {who}{stopped}.", f"{because} {figures} {_warning(verdict)}".rstrip()
        )
    if decision.outcome == "waiting":
        detail = f"{_how_to_decide(verdict)} {_deadline(decision)} {figures} {verdict.advice}".rstrip()
        return Statement("warn", f"The run waits for a person to decide about the {verdict.model}.", detail)
    if decision.outcome == "timed_out":
        detail = f"The run asked on {moment(decision.asked_at)}; silence counts as a rejection. {figures}"
        return Statement("bad", f"No decision about the {verdict.model} came in time{stopped}.", detail)
    return Statement("bad", f"{name} was {decision.outcome} against its figures: the gate stays closed.", figures)


def _facts(decision: GateDecision) -> Pairs:
    earlier = decision.earlier[-_MAX_EARLIER:]
    deadline = moment(decision.until) if decision.until else "none"
    return (
        ("Decided by", decision.by),
        ("Reason", decision.reason),
        ("On", moment(decision.at) if decision.at else ""),
        ("Given by", decision.origin),
        ("Asked on", moment(decision.asked_at) if decision.asked_at else ""),
        ("Deadline", "" if decision.by else deadline),
        *(("Before that", _earlier(old)) for old in reversed(earlier)),
    )


def _earlier(old: GateDecision) -> str:
    reason = f": {old.reason}" if old.reason else ""
    return f"{old.outcome} by {old.by or 'an unnamed person'}{f', {moment(old.at)}' if old.at else ''}{reason}"


def _waiver(verdict: GateVerdict) -> str:
    reason = sentence(one_line(verdict.waiver_reason, MESSAGE_LIMIT))
    when = f" on {moment(verdict.decision.at)}" if verdict.decision and verdict.decision.at else ""
    return f"Waived by {one_line(verdict.waived_by, _NAME_LIMIT) or 'an unnamed person'}{when} because: {reason}"


def _how_to_decide(verdict: GateVerdict) -> str:
    return f"Decide with rlhf approve --gate {verdict.name}, or by Resume in Prefect where the run is suspended there."


def _deadline(decision: GateDecision) -> str:
    if not decision.until:
        return "It waits without limit."
    return f"Without a decision by {moment(decision.until)} it counts as rejected."


def _stopped(inputs: ReportInputs, verdict: GateVerdict) -> str:
    """Say that policy training was not started, if the closed gate of the reward model prevented it."""
    trained = inputs.stage(StageName.TRAIN_DPO) or inputs.stage(StageName.TRAIN_POLICY)
    saved = verdict.name == "reward_model" and (trained is None or trained.status == "skipped")
    return ": policy training was not started" if saved else ""


def _warning(verdict: GateVerdict) -> str:
    return "Do not use it in place of its reference." if verdict.name == "policy" else ""
