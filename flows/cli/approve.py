"""`rlhf approve`: show what waits at the gates of a run, or decide."""

import argparse
import sys
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from containers.contracts.records import GateDecision
from containers.formatting import moment
from flows.cli.options import Command, add_config_options, load_run_with_store
from flows.servers.logins import known_login
from flows.servers.settings import STATE_DIR
from tasks.config.gates import figure_lines
from tasks.config.loading import LoadedConfig
from tasks.config.logins import PREFECT_LOGIN
from tasks.gates.text import deadline_text, problem_with, waiting_text
from tasks.store.decisions import ApprovalError, DamagedDecisionError, Decisions, Question

_EXIT_REFUSED = 1
_EXIT_COMMAND_LINE = 2
_GATES: tuple["Gate", ...] = ("reward_model", "policy")
_ORIGIN = "rlhf approve"

_DECISIONS = (
    ("approve", "approved", "the run may go on; for a model that met every rule"),
    ("waive", "waived", "the run may go on although a rule was missed; needs --reason"),
    ("reject", "rejected", "the run ends; needs --reason"),
)

Gate: TypeAlias = Literal["reward_model", "policy"]


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    parser.add_argument("--gate", choices=_GATES, help="which gate (default: the one that waits, if only one does)")
    decisions = parser.add_mutually_exclusive_group()
    for option, outcome, text in _DECISIONS:
        decisions.add_argument(f"--{option}", action="store_const", const=outcome, dest="outcome", help=text)
    parser.add_argument("--by", default="", metavar="NAME", help="who decides; shown in the report (example: --by Ada)")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; shown in the report")
    parser.add_argument("--replace", action="store_true", help="replace an earlier decision; both stay on record")


def _run(parsed: argparse.Namespace) -> int:
    loaded = load_run_with_store(parsed)
    if parsed.outcome is None:
        return show_waiting(loaded, gate=parsed.gate)
    return _decide(loaded, parsed)


APPROVE = Command(_add_options, _run)


def show_waiting(loaded: LoadedConfig, *, gate: Gate | None) -> int:
    """Print the run's questions at its gates: figures, decision or how to decide. Returns 0 if there are any."""
    asked = [question for name in _GATES if gate in (None, name) and (question := _newest(loaded, name))]
    if not asked:
        return _refuse(_nothing_asked(loaded, gate))
    for question in asked:
        sys.stdout.write(f"{_shown(loaded, question)}\n")
    return 0


def _decide(loaded: LoadedConfig, parsed: argparse.Namespace) -> int:
    """Record a person's decision, and resume a suspended run. Returns 1 or 2 if the decision is refused."""
    question = _one_question(loaded, parsed.gate)
    if isinstance(question, str):
        return _refuse(question)
    if changed := _rules_changed(loaded, question):
        return _refuse(changed)
    decision = GateDecision.model_validate(
        {
            "outcome": parsed.outcome,
            "by": parsed.by.strip(),
            "reason": parsed.reason.strip(),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "origin": _ORIGIN,
            "asked_at": question.asked_at,
            "until": question.until,
        }
    )
    if problem := problem_with(decision, question.verdict):
        return _refuse(problem, exit_code=_EXIT_COMMAND_LINE)
    _take_answer_in_prefect(loaded, question)
    try:
        written = _decisions(loaded).decide(question, decision, replace=parsed.replace)
    except ApprovalError as error:
        return _refuse(str(error))
    where = _decisions(loaded).path(question.gate, question.key)
    said = f"The {question.verdict.model} was {written.outcome} by {written.by}"
    sys.stdout.write(f"{said}; recorded in {where}.\n")
    _go_on(loaded, question, written)
    return 0


def _take_answer_in_prefect(loaded: LoadedConfig, question: Question) -> None:
    """Record an answer from Prefect that the resumed run has not read yet: the first decision counts."""
    if _decisions(loaded).path(question.gate, question.key).exists():
        return
    for item in _same(loaded, question):
        if not item.flow_run_id:
            continue
        from tasks.gates.prefect_form import answer_in_prefect  # late, as in `_resumed`

        with _its_server(item):
            answer, _ = answer_in_prefect(item)
        if answer is not None:
            with suppress(ApprovalError):  # the run has just read it
                _decisions(loaded).decide(item, answer)
            return


def _same(loaded: LoadedConfig, question: Question) -> list[Question]:
    """The same question, as each run of this store asked it."""
    return list(_decisions(loaded).questions(question.gate, key=question.key))


def _go_on(loaded: LoadedConfig, question: Question, decision: GateDecision) -> None:
    """Resume every suspended run with the same question, and print how the others go on."""
    same = _same(loaded, question)
    for item in same:
        if item.flow_run_id:
            sys.stdout.write(f"{_resumed(item, decision)}\n")
    commands = dict.fromkeys(item.command for item in same if item.command and not item.flow_run_id)
    for command in commands:
        sys.stdout.write(f"Go on with: {command}\n")


def _resumed(question: Question, decision: GateDecision) -> str:
    # Import Prefect only if a run is suspended there: it takes seconds, and needs a server.
    from tasks.gates.prefect_form import resume
    from tasks.prefect_sync.api import PrefectApi

    with _its_server(question):
        return resume(question, decision, PrefectApi())


def _its_server(question: Question) -> AbstractContextManager[object]:
    """Use the Prefect server of the run that asked, during the block; one that is gone costs seconds."""
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_CLIENT_MAX_RETRIES,
        temporary_settings,
    )

    changes: dict[object, object] = {PREFECT_API_URL: question.prefect_api_url, PREFECT_CLIENT_MAX_RETRIES: 1}
    login = known_login(STATE_DIR, question.prefect_api_url)
    if login:
        changes[PREFECT_API_AUTH_STRING] = login[PREFECT_LOGIN]
    return temporary_settings(changes)


def _shown(loaded: LoadedConfig, question: Question) -> str:
    _take_answer_in_prefect(loaded, question)
    try:
        decision = _decisions(loaded).find(question.gate, question.key)
    except DamagedDecisionError as error:
        return f"{error}\n{waiting_text(question)}"
    if decision is None:
        left_s = question.seconds_left()
        late = "" if left_s is None or left_s > 0 else "The deadline has passed; a late decision still counts.\n"
        return f"{late}{waiting_text(question)}"
    figures = "\n".join(f"  {line}" for line in figure_lines(question.verdict))
    reason = f": {decision.reason.rstrip('.')}" if decision.reason else ""
    said = f"The {question.verdict.model} was {decision.outcome} by {decision.by} ({moment(decision.at)}){reason}."
    return f"{said}\n{figures}\n{deadline_text(question)}"


def _one_question(loaded: LoadedConfig, gate: Gate | None) -> Question | str:
    """The question to decide, or why it is not clear which."""
    asked = [question for name in _GATES if gate in (None, name) and (question := _newest(loaded, name))]
    if not asked:
        return _nothing_asked(loaded, gate)
    if len(asked) > 1:
        return "Both gates of this run asked for a decision. Choose one: --gate reward_model or --gate policy."
    return asked[0]


def _newest(loaded: LoadedConfig, gate: Gate) -> Question | None:
    """The last question of this run at that gate."""
    config = loaded.config
    own = (config.run.name, str(config.output_dir.resolve()))
    return next((item for item in _decisions(loaded).questions(gate) if (item.run_name, item.output_dir) == own), None)


def _rules_changed(loaded: LoadedConfig, question: Question) -> str:
    """Why a decision would not count: the gate's rules have changed. Empty if they have not."""
    settings = loaded.config.gates.reward_model if question.gate == "reward_model" else loaded.config.gates.policy
    if settings.rules() == question.rules:
        return ""
    return (
        f"gates.{question.gate} has changed since the run asked, so a decision would not count. "
        f"Start the run again, and it asks with the new rules: rlhf run -c {loaded.path}"
    )


def _nothing_asked(loaded: LoadedConfig, gate: Gate | None) -> str:
    where = "at any gate" if gate is None else f"at the gate of the {gate.replace('_', ' ')}"
    return (
        f"Run {loaded.config.run.name} in {loaded.config.output_dir.resolve()} has asked for no decision {where}. It "
        f"asks after the model's evaluation, if gates.{gate or 'reward_model'}.approval is required or when_closed."
    )


def _decisions(loaded: LoadedConfig) -> Decisions:
    return Decisions(loaded.config.store_dir.resolve())


def _refuse(text: str, *, exit_code: int = _EXIT_REFUSED) -> int:
    sys.stderr.write(f"{text}\n")
    return exit_code
