"""A language model behind an address, whose answers the orchestrator collected: they are read here."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from containers.contracts.configs.parts.judge_question import judge_version
from containers.contracts.configs.parts.judges import EndpointJudge
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import JUDGE_INPUT, VERDICTS_FILE
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError
from containers.judges.base import Pair, StartedJudge
from containers.judges.elsewhere import AskedElsewhere
from containers.judges.orders import Choice, Chosen, JudgeOfOrders
from containers.rewards.base import Rewarding

_LETTERS: Mapping[str, Choice] = {"A": "first", "B": "second", "TIE": "tie"}
_VERDICT = re.compile(r"\b(A|B|TIE)\b")
_THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_NOT_ASKED = Chosen(None, "it was not asked about this pair")


class Collected(JudgeOfOrders):
    """Reads what the judge wrote.

    Args:
        written: what it chose, by the pair's place and whether the policy's answer came first.
        text: who judges, for people.
    """

    def __init__(self, written: Mapping[tuple[int, bool], Chosen], *, text: str) -> None:
        self._written = written
        self._text = text

    def choices(self, pairs: Sequence[tuple[int, Pair]]) -> list[tuple[Chosen, Chosen]]:
        """Return what it chose of each pair in both orders."""
        return [
            (self._written.get((place, True), _NOT_ASKED), self._written.get((place, False), _NOT_ASKED))
            for place, _ in pairs
        ]

    def shown(self) -> str:
        """Return who judges."""
        return self._text


def read_choice(text: str) -> Chosen:
    """Return what an answer chooses: its last letter A or B, or the word TIE, behind a thought if it has one.

    Example: "Answer B is wrong, so: A" chooses the first answer; "both are fine" chooses nothing.
    """
    found = _VERDICT.findall(_THOUGHT.sub("", text))
    return Chosen(_LETTERS[found[-1]]) if found else Chosen(None, "its answer names neither A nor B")


def start(context: StageContext, config: Rewarding, judge: EndpointJudge) -> StartedJudge:
    """Read the collected answers; while a policy trains, leave pairs and read the answers later.

    Raises:
        MissingPrerequisiteError: there are none, or they are damaged.
    """
    role = f"{JUDGE_INPUT}_{judge.name}"
    if isinstance(config, TrainPolicyConfig):
        text = _shown(f"{judge.model}, question {judge_version(judge.criteria)},")
        return AskedElsewhere(context, name=judge.name, text=text, read=partial(_collected, judge, text=text))
    return _collected(judge, context.input_path(role) / VERDICTS_FILE, text=_shown(context.input(role).origin))


def _shown(model: str) -> str:
    return f"the language model {model} at an address, both orders"


def _collected(judge: EndpointJudge, path: Path, *, text: str) -> Collected:
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        written = {(int(line["place"]), bool(line["policy_first"])): _chosen(line) for line in lines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MissingPrerequisiteError(
            f"The answers of judge {judge.name}, {path}, cannot be read: {error}."
        ) from error
    return Collected(written, text=text)


def _chosen(line: Mapping[str, Any]) -> Chosen:
    return Chosen(None, line["problem"]) if line["problem"] else read_choice(line["answer"])
