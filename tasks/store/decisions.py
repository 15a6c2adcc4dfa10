"""Decisions of people at gates, and open questions. They are files in the store, so they survive the loss of a server.

`decisions/<gate>/<key>.json` holds the decision, `<key>.<run>.question.json` the question of a run. The key covers the
evaluated artifact's digest and the gate's rules, so a decision never counts for another model, other figures or other
rules.

ApprovalError               the message says what and what to do
├── AlreadyDecidedError     a person decided before
└── DamagedDecisionError    the file of a decision cannot be read; it counts as none
"""

import hashlib
import os
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import Field, JsonValue, ValidationError

from containers.contracts.base import Frozen
from containers.contracts.digests import write_atomically
from containers.contracts.identity import identity_key
from containers.contracts.records import GateDecision, GateVerdict
from containers.formatting import moment

DECISIONS_FOLDER = "decisions"
_QUESTION = "question.json"
_DECIDED = ("approved", "waived", "rejected")


class ApprovalError(Exception):
    """A decision cannot be taken or read."""


class AlreadyDecidedError(ApprovalError):
    """A person decided before; `decision` says who and what."""

    def __init__(self, message: str, decision: GateDecision) -> None:
        super().__init__(message)
        self.decision = decision


class DamagedDecisionError(ApprovalError):
    """The file of a decision cannot be read."""


class Question(Frozen):
    """A question to a person: what a run asks, which run, and where to send the answer."""

    key: str
    verdict: GateVerdict = Field(description="Rules and figures, without a decision")
    rules: dict[str, JsonValue] = Field(description="The gate's rules, as in the run's configuration")
    run_name: str
    run_id: str
    output_dir: str
    asked_at: str = Field(description="UTC, ISO 8601")
    told_at: str = Field("", description="When people were notified, UTC, ISO 8601; empty: not yet")
    timeout_h: float | None = Field(None, description="Hours until silence counts as a rejection; null: never")
    command: str = Field("", description="Starts the run again; empty if Prefect does that")
    report: str = Field("", description="The run's report: its page in MLflow, else the file")
    mlflow_url: str = Field("", description="Page of the parent run in MLflow; empty where it has none")
    mlflow_run_id: str = Field("", description="The parent run that waits")
    prefect_api_url: str = ""
    prefect_url: str = Field("", description="Page of the flow run")
    flow_run_id: str = Field("", description="The suspended flow run; empty where none is")

    @property
    def gate(self) -> str:
        """The gate's name."""
        return self.verdict.name

    @property
    def until(self) -> str:
        """Deadline, UTC, ISO 8601: after it, silence counts as a rejection; empty: none."""
        if self.timeout_h is None:
            return ""
        return (datetime.fromisoformat(self.asked_at) + timedelta(hours=self.timeout_h)).isoformat()

    def seconds_left(self) -> float | None:
        """Seconds until the deadline; negative after it, None without a deadline."""
        if self.timeout_h is None:
            return None
        return (datetime.fromisoformat(self.until) - datetime.now(UTC)).total_seconds()

    def unanswered(self) -> GateDecision:
        """Build the decision `waiting` or, after the deadline, `timed_out`."""
        left_s = self.seconds_left()
        outcome = "waiting" if left_s is None or left_s > 0 else "timed_out"
        return GateDecision.model_validate({"outcome": outcome, "asked_at": self.asked_at, "until": self.until})


def decision_key(gate: str, *, evaluation_key: str, evaluation_digest: str, rules: Mapping[str, object]) -> str:
    """Key of one evaluated artifact under one set of rules; 64 hexadecimal digits."""
    evaluation = {"evaluation_key": evaluation_key, "evaluation_digest": evaluation_digest}
    return identity_key({"gate": gate, **evaluation, "rules": dict(rules)})


class Decisions:
    """The decisions of one store."""

    def __init__(self, store_dir: Path) -> None:
        self._folder = store_dir / DECISIONS_FOLDER

    def path(self, gate: str, key: str) -> Path:
        """Path of the decision, if there is one."""
        return self._folder / gate / f"{key}.json"

    def find(self, gate: str, key: str) -> GateDecision | None:
        """Return the decision for exactly that key; None if there is none.

        Raises:
            DamagedDecisionError: the file does not hold a person's decision.
        """
        path = self.path(gate, key)
        try:
            decision = GateDecision.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise DamagedDecisionError(_damaged(path, type(error).__name__)) from error
        if decision.outcome not in _DECIDED or not decision.by.strip():
            raise DamagedDecisionError(_damaged(path, "it names no person and decision"))
        return decision

    def decide(self, question: Question, decision: GateDecision, *, replace: bool = False) -> GateDecision:
        """Write a decision, once. The file system lets only one of two simultaneous writers succeed.

        Args:
            replace: replace an earlier decision, which is kept beside it; else that is refused.

        Returns:
            What was written.

        Raises:
            AlreadyDecidedError: a person decided before, and `replace` is not given.
            DamagedDecisionError: the existing file cannot be read, and `replace` is not given.
        """
        path = self.path(question.gate, question.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        if replace:
            return self._replace(question, decision)
        try:
            _write_once(path, decision.model_dump_json(indent=2))
        except FileExistsError:
            before = self.find(question.gate, question.key)
            if before is None:  # it was removed just now
                return self.decide(question, decision)
            raise AlreadyDecidedError(_already(question, before), before) from None
        return decision

    def set_damaged_aside(self, gate: str, key: str) -> Path:
        """Move a file that cannot be read aside, to make room for a decision. Return its new path."""
        path = self.path(gate, key)
        return path.rename(_free_name(path, "damaged"))

    def asked_before(self, question: Question) -> Question | None:
        """Return the question as the same run first asked it; None if it did not."""
        return Question.read_if_valid(self._question_path(question))

    def keep_question(self, question: Question) -> None:
        """Write the question."""
        path = self._question_path(question)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, question.model_dump_json(indent=2))

    def questions(self, gate: str, *, key: str = "*") -> tuple[Question, ...]:
        """Questions of runs at that gate, or of that key only; decided or not, the newest first."""
        found = [Question.read_if_valid(path) for path in (self._folder / gate).glob(f"{key}.*.{_QUESTION}")]
        return tuple(sorted((item for item in found if item), key=lambda item: item.asked_at, reverse=True))

    def _question_path(self, question: Question) -> Path:
        run = hashlib.sha256(f"{question.output_dir}\n{question.flow_run_id}".encode()).hexdigest()[:12]
        return self._folder / question.gate / f"{question.key}.{run}.{_QUESTION}"

    def _replace(self, question: Question, decision: GateDecision) -> GateDecision:
        earlier: tuple[GateDecision, ...] = ()
        try:
            before = self.find(question.gate, question.key)
        except DamagedDecisionError:
            self.set_damaged_aside(question.gate, question.key)
        else:
            if before is not None:
                earlier = (*before.earlier, before.model_copy(update={"earlier": ()}))
        decision = decision.model_copy(update={"earlier": earlier})
        write_atomically(self.path(question.gate, question.key), decision.model_dump_json(indent=2))
        return decision


def decision_stands(verdict: GateVerdict, store_dir: Path) -> bool:
    """Whether the store still holds the verdict's decision; True if the verdict has none."""
    if verdict.decision is None:
        return True
    try:
        return Decisions(store_dir).find(verdict.name, verdict.decision_key) == verdict.decision
    except DamagedDecisionError:
        return False


def _write_once(path: Path, text: str) -> None:
    """Write `text` into a new file, whole or not at all; raise FileExistsError if it exists."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.draft")
    write_atomically(draft, text)
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        with open(path, "x", encoding="utf-8") as stream:
            stream.write(text)
    finally:
        draft.unlink()


def _free_name(path: Path, why: str) -> Path:
    number = 1
    while (name := path.with_name(f"{path.stem}.{why}-{number}")).exists():
        number += 1
    return name


def _already(question: Question, before: GateDecision) -> str:
    reason = f": {before.reason.rstrip('.')}" if before.reason else ""
    return (
        f"The {question.verdict.model} was already {before.outcome} by {before.by} ({moment(before.at)}){reason}. "
        "Nothing was changed. To replace that decision, give the new one with --replace; both stay on record."
    )


def _damaged(path: Path, why: str) -> str:
    return (
        f"The decision in {path} cannot be read ({why}), so it counts as none. Decide again with `rlhf approve` and "
        "--replace; the damaged file is set aside."
    )
