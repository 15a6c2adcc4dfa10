"""Decide whether a gate lets the pipeline go on: by its rules and, if configured, by a person's decision.

The decision is in the store, for exactly the model, figures and rules in question. Without one, the run ends: suspended
in Prefect if a deployment can start it again, else for `rlhf approve` and a new start.
"""

import logging
from datetime import UTC, datetime

from containers.contracts.names import REPORT_HTML_FILE
from containers.contracts.pipeline import JUDGED_BY
from containers.contracts.records import GateDecision, GateVerdict
from containers.report.gates import gate_section
from tasks.config.gates import ApprovalSettings, GateWaitsError, PolicyGate, RewardModelGate, demand
from tasks.display import current_display
from tasks.gates import prefect_form as form
from tasks.gates.notice import notify
from tasks.gates.text import waiting_text
from tasks.prefect_sync.api import PrefectApi, present_flow_run
from tasks.prefect_sync.artifacts import show_blocks
from tasks.prefect_sync.forms import can_be_suspended
from tasks.run.state import PipelineRun
from tasks.store.decisions import AlreadyDecidedError, DamagedDecisionError, Decisions, Question, decision_key

logger = logging.getLogger(__name__)


class QuestionOpenError(GateWaitsError):
    """A gate waits for a person; `wait_for_decision` makes the run wait once its report is written."""

    def __init__(
        self, question: Question, verdict: GateVerdict, *, decisions: Decisions, notify_by: str | None, refused: str
    ) -> None:
        super().__init__(waiting_text(question), verdict)
        self.question = question
        self.notify_by = notify_by
        self.refused = refused
        self._decisions = decisions

    def told(self) -> None:
        """Record that people were notified, so that the next run that waits here does not notify them again."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._decisions.keep_question(self.question.model_copy(update={"told_at": now}))


def opened(run: PipelineRun, verdict: GateVerdict, gate: RewardModelGate | PolicyGate) -> GateVerdict:
    """Return the verdict if it lets the pipeline go on.

    Raises:
        GateClosedError: it does not, a person rejected the model, or the deadline passed without a decision.
        GateWaitsError: a person has yet to decide.
    """
    if not gate.asks(verdict):
        demand(verdict)
        return verdict
    decisions = Decisions(run.store_dir)
    question = _question(run, verdict, gate, decisions)
    decision, refused = _given(question, decisions)
    judged = verdict.model_copy(
        update={
            "decision": decision,
            "decision_key": question.key,
            "waived_by": decision.by if decision.outcome == "waived" else "",
            "waiver_reason": decision.reason if decision.outcome == "waived" else "",
        }
    )
    run.gates = [judged if known.name == judged.name else known for known in run.gates]
    _show(run, judged, question)
    if decision.outcome == "waiting":
        raise QuestionOpenError(question, judged, decisions=decisions, notify_by=gate.notify, refused=refused)
    demand(judged)
    return judged


def wait_for_decision(error: BaseException) -> None:
    """If a gate waits, notify people, and suspend the flow run if Prefect can start it again.

    Call it at the end of a run, after its report. Does nothing for any other error.

    Raises:
        Pause: the flow run is suspended, and this process ends.
        GateWaitsError: it could not be suspended; it ends like a run in a terminal.
    """
    if not isinstance(error, QuestionOpenError):
        return
    question = error.question
    flow_run = present_flow_run()
    if not question.told_at or error.refused:
        problem = notify(question, block=error.notify_by, flow_run_id=str(flow_run.id) if flow_run else "")
        if problem:
            current_display().say(problem)
        else:
            error.told()
    if question.flow_run_id:
        problem = form.suspend(question, refused=error.refused)
        left = question.model_copy(update={"flow_run_id": ""})  # it cannot be resumed there
        raise GateWaitsError(f"{waiting_text(left)}\n{problem}", error.verdict) from error


def _question(run: PipelineRun, verdict: GateVerdict, gate: ApprovalSettings, decisions: Decisions) -> Question:
    """Build the question, with the time at which this run first asked it."""
    evaluated = run.record_of(JUDGED_BY[verdict.name])
    if evaluated is None:
        raise RuntimeError(f"{verdict.name} was judged before it was evaluated.")
    flow_run = present_flow_run()
    key = decision_key(
        verdict.name, evaluation_key=evaluated.key, evaluation_digest=evaluated.digest, rules=gate.rules()
    )
    question = Question(
        key=key,
        verdict=verdict,
        rules=gate.rules(),
        run_name=run.config.run.name,
        run_id=run.run_id,
        output_dir=str(run.output_dir),
        asked_at=datetime.now(UTC).isoformat(timespec="seconds"),
        timeout_h=gate.approval_timeout_h,
        command=run.command,
        report=run.tracking.file_url(run.mlflow_run_id, f"report/{REPORT_HTML_FILE}")
        or str(run.output_dir / REPORT_HTML_FILE),
        mlflow_url=run.tracking.run_url(run.mlflow_run_id),
        mlflow_run_id=run.mlflow_run_id,
        prefect_api_url=PrefectApi().url if flow_run else "",
        prefect_url=run.prefect_url,
        flow_run_id=str(flow_run.id) if flow_run and can_be_suspended(flow_run) else "",
    )
    before = decisions.asked_before(question)
    if before is None:
        return question
    known = {"asked_at": before.asked_at, "told_at": before.told_at, "mlflow_run_id": before.mlflow_run_id}
    return question.model_copy(update=known)


def _given(question: Question, decisions: Decisions) -> tuple[GateDecision, str]:
    """Return the decision that counts, or that there is none; and why the last answer in Prefect was refused."""
    try:
        decision = decisions.find(question.gate, question.key)
    except DamagedDecisionError as error:
        aside = decisions.set_damaged_aside(question.gate, question.key)
        current_display().say(f"{error} It is now at {aside}.")
        decision = None
    if decision is not None:
        return decision, ""
    answer, refused = form.answer_in_prefect(question)
    if answer is None:
        return question.unanswered(), refused
    try:
        return decisions.decide(question, answer), ""
    except AlreadyDecidedError as error:  # `rlhf approve` was faster
        return error.decision, ""


def _show(run: PipelineRun, judged: GateVerdict, question: Question) -> None:
    """Show the verdict on the pages of Prefect and MLflow, and keep the question while it is open."""
    decision = judged.decision
    show_blocks(
        f"gate-{judged.name.replace('_', '-')}",
        gate_section(judged),
        description="Who decides at this gate, and how",
    )
    current_display().say(f"Gate     {judged.model} {judged.outcome_text}")
    tags = {f"rlhf.gate.{judged.name}": judged.outcome_text}
    if decision is not None and decision.outcome == "waiting":
        Decisions(run.store_dir).keep_question(question)
        tags["rlhf.ended_waiting_for"] = f"a decision about the {judged.model}"
    elif question.mlflow_run_id and question.mlflow_run_id != run.mlflow_run_id:
        tags["rlhf.goes_on_from_run"] = question.mlflow_run_id
    run.tracking.set_tags(run.mlflow_run_id, tags)
