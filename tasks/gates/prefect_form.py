"""The form in which Prefect asks a person about a gate."""

import logging
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, FlowRunInput
from prefect.flow_runs import resume_flow_run
from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from containers.contracts.records import GateDecision
from tasks.gates.text import form_markdown, problem_with
from tasks.prefect_sync.api import PrefectApi, PrefectAwayError
from tasks.prefect_sync.forms import RESPONSE, Form, form_inputs, number_of_next_form, suspend_with
from tasks.store.decisions import Question

logger = logging.getLogger(__name__)

ORIGIN = "form in Prefect"
_OUTCOMES = {"approve": "approved", "waive": "waived", "reject": "rejected"}
_WORDS = {outcome: word for word, outcome in _OUTCOMES.items()}
_SHORTEST_REASON = 3


_By = Annotated[
    str,
    Field(title="Your name", min_length=1, max_length=80, pattern=r"\S", description="Who decides"),
]
# Not as pydantic's model validators: Prefect would call them only after it started the run again.
_REJECTION_HAS_A_REASON: JsonDict = {
    "if": {"properties": {"decision": {"const": "reject"}}},
    "then": {"properties": {"reason": {"minLength": _SHORTEST_REASON}}, "required": ["reason"]},
}


class ModelThatPassed(Form):
    """The answer about a model that met every rule."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_REJECTION_HAS_A_REASON)

    decision: Literal["approve", "reject"] = Field(
        title="Decision", description="approve: the run goes on; reject: the run ends"
    )
    reason: str = Field("", title="Reason", max_length=1000, description="Needed only to reject")
    by: _By


class ModelThatMissed(Form):
    """The answer about a model that missed a rule."""

    decision: Literal["waive", "reject"] = Field(
        title="Decision", description="waive: the run goes on although the gate was missed; reject: the run ends"
    )
    reason: str = Field(
        title="Reason",
        min_length=_SHORTEST_REASON,
        max_length=1000,
        pattern=r"\S",
        description="Why the run goes on, or why it ends",
    )
    by: _By


def answer_in_prefect(question: Question) -> tuple[GateDecision | None, str]:
    """Return the first valid answer to the question, and why the last invalid one was refused."""
    if not question.flow_run_id:
        return None, ""
    refused = ""
    try:
        for decision in _answers(question):
            refused = problem_with(decision, question.verdict)
            if not refused:
                return decision, ""
    except Exception as error:  # without a server there is no answer; the run waits
        logger.warning("Prefect could not be queried for an answer: %s", error)
    return None, refused


def suspend(question: Question, *, refused: str = "") -> str:
    """Suspend the run until a person answers in Prefect or by `rlhf approve`. Return why that failed.

    Raises:
        Pause: the run is suspended; Prefect's engine takes over.
    """
    form = ModelThatPassed if question.verdict.passed else ModelThatMissed
    try:
        pause = f"{_pause_prefix(question)}{number_of_next_form(question.flow_run_id, _pause_prefix(question))}"
        # Prefect reads the description from the class that it is given.
        shown = form.with_initial_data(description=form_markdown(question, refused=refused))
    except Exception as error:
        logger.warning("The run could not be suspended: %s", error)
        return f"Prefect could not suspend the run ({type(error).__name__}: {error})."
    return suspend_with(shown, flow_run_id=question.flow_run_id, pause=pause, left_s=question.seconds_left())


def resume(question: Question, decision: GateDecision, api: PrefectApi) -> str:
    """Resume a suspended run with a decision that was made elsewhere. Return the outcome as text."""
    name = f"Flow run {question.flow_run_id}"
    answer: dict[str, Any] = {"by": decision.by, "decision": _WORDS[decision.outcome], "reason": decision.reason}
    try:
        flow_run = api.flow_run(question.flow_run_id)
        if flow_run is None:
            return f"{name} is unknown to Prefect at {api.url}."
        if flow_run.state is None or not flow_run.state.is_paused():
            return _not_suspended(name, flow_run, question)
        resume_flow_run(UUID(question.flow_run_id), run_input=answer)
    except PrefectAwayError as error:
        return f"{name} is not resumed: Prefect at {api.url} does not answer ({error}). Press Resume there later."
    except Exception as error:
        return f"{name} could not be resumed: {error}. Press Resume in Prefect: {_page(question)}"
    return f"{name} goes on: {_page(question)}"


def _pause_prefix(question: Question) -> str:
    return f"{question.gate.replace('_', '-')}-{question.key[:16]}-"  # Prefect's keys allow no underscore


def _not_suspended(name: str, flow_run: FlowRun, question: Question) -> str:
    """Text about a decision for a run that is no longer suspended."""
    if flow_run.state is not None and flow_run.state.is_final() and not flow_run.state.is_completed():
        return f"{name} is {flow_run.state_name}. Press Retry on its page, and it goes on from here: {_page(question)}"
    state = flow_run.state_name or "without a state"
    return f"{name} is {state}, not suspended; its next gate check finds the decision in the store."


def _page(question: Question) -> str:
    return question.prefect_url or question.flow_run_id


def _answers(question: Question) -> list[GateDecision]:
    """Answers that people gave in Prefect, the oldest first; a form may have been resumed without an answer."""
    inputs = form_inputs(question.flow_run_id, _pause_prefix(question))
    answers = [item for item in inputs if item.key.endswith(RESPONSE) and isinstance(item.decoded_value, dict)]
    return [_decision(item, question) for item in answers]


def _decision(answer: FlowRunInput, question: Question) -> GateDecision:
    said = answer.decoded_value
    at = answer.created or datetime.now(UTC)
    return GateDecision.model_validate(
        {
            "outcome": _OUTCOMES.get(str(said.get("decision")), "rejected"),
            "by": str(said.get("by") or "").strip(),
            "reason": str(said.get("reason") or "").strip(),
            "at": at.astimezone(UTC).isoformat(timespec="seconds"),
            "origin": ORIGIN,
            "asked_at": question.asked_at,
            "until": question.until,
        }
    )
