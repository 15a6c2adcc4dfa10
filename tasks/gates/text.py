"""Texts for people for whom a gate waits: figures, how to decide, what a decision lacks. Pure."""

import shlex

from containers.contracts.records import GateDecision, GateVerdict
from containers.formatting import markdown_text, moment
from tasks.config.gates import figure_lines
from tasks.store.decisions import Question

_OPTIONS_WITH_VALUE = ("-c", "--config", "--set", "--profile")


def problem_with(decision: GateDecision, verdict: GateVerdict) -> str:
    """Why a person's decision is not valid, and what to do; empty: it is valid."""
    if not decision.by.strip():
        return "The decision names no person. Say who decides: the report shows it."
    if decision.outcome == "approved" and not verdict.passed:
        return (
            f"The {verdict.model} did not meet every rule of its gate, so it cannot be approved. Waive the gate with a "
            "reason, or reject the model."
        )
    if decision.outcome == "waived" and verdict.passed:
        return f"The {verdict.model} met every rule of its gate, so there is nothing to waive. Approve or reject it."
    if decision.outcome != "approved" and not decision.reason.strip():
        deed = "waive a gate" if decision.outcome == "waived" else "reject a model"
        return f"The decision has no reason. To {deed}, say why: the report shows it."
    return ""


def waiting_text(question: Question) -> str:
    """Text about a waiting gate: its figures, the deadline, and how to go on; for terminal and error message."""
    verdict = question.verdict
    decide = approve_command(question)
    consent = "--approve --by NAME" if verdict.passed else "--waive --by NAME --reason TEXT"
    lines = [f"The {verdict.model} waits at its gate for a person's decision."]
    lines += [f"  {line}" for line in figure_lines(verdict)]
    if verdict.advice:
        lines.append(verdict.advice)
    lines += [
        *([f"Look at:  {question.report}"] if question.report else []),
        deadline_text(question),
        f"Decide:   {decide} {consent}",
        f"      or  {decide} --reject --by NAME --reason TEXT",
    ]
    if question.flow_run_id:
        lines.append(f"      or  press Resume in Prefect: {question.prefect_url or question.flow_run_id}")
    else:
        lines.append(f"Then go on:  {question.command or 'start the run again'}")
    return "\n".join(lines)


def deadline_text(question: Question) -> str:
    """When the question was asked, and when silence counts as a rejection."""
    since = f"Asked on {moment(question.asked_at)}."
    if not question.until:
        return f"{since} It waits without limit."
    return f"{since} Without a decision by {moment(question.until)} it counts as rejected."


def form_markdown(question: Question, *, refused: str = "") -> str:
    """Text above the form in Prefect. The form is narrow, so this has a list where the pages have a table."""
    verdict = question.verdict
    head = "meets every rule of its gate" if verdict.passed else "does **not** meet every rule of its gate"
    consent = "Approve the model" if verdict.passed else "Waive the gate, with a reason,"
    figures = [
        f"- {'✓' if rule.passed else '✕'} {markdown_text(rule.name)}: **{markdown_text(rule.found)}**, "
        f"wanted {markdown_text(rule.wanted)}"
        for rule in verdict.rules
    ]
    parts = [
        f"**The last answer was not taken.** {markdown_text(refused)}" if refused else "",
        f"The {verdict.model} of run `{question.run_name}` {head}:",
        "\n".join(figures),
        markdown_text(verdict.advice, limit=600),
        _look_closer(question),
        f"{consent} and the run goes on; reject the model and the run ends. The report shows your name and reason.",
        deadline_text(question),
    ]
    return "\n\n".join(part for part in parts if part)


def approve_command(question: Question) -> str:
    """Beginning of the command that decides, with the run's file and its changes to that file."""
    words = shlex.split(question.command)
    kept = ["-c", "FILE"]
    if words[:2] == ["rlhf", "run"]:
        kept = []
        rest = iter(words[2:])
        for word in rest:
            if word in _OPTIONS_WITH_VALUE:
                kept += [word, next(rest, "")]
            elif word.partition("=")[0] in _OPTIONS_WITH_VALUE:
                kept.append(word)
    return f"{shlex.join(['rlhf', 'approve', *kept])} --gate {question.gate}"


def _look_closer(question: Question) -> str:
    """Where curves and samples are. A file on a disk is no link, since a browser does not follow it from here."""
    links = []
    if question.report.startswith("http"):
        links.append(f"[the report]({question.report})")
    elif question.report:
        links.append(f"the report `{question.report}`")
    if question.mlflow_url:
        links.append(f"[curves and files in MLflow]({question.mlflow_url})")
    return f"Look closer: {', '.join(links)}." if links else ""
