"""A language model behind an address, whose answers the orchestrator collected: they are read here."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.judges import EndpointJudge
from containers.contracts.names import JUDGE_INPUT, VERDICTS_FILE
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError
from containers.judges.base import Pair, Places, StartedJudge, Verdict
from containers.judges.orders import Choice, Shown, places_of, verdict_of

_LETTERS: Mapping[str, Choice] = {"A": "first", "B": "second", "TIE": "tie"}
_VERDICT = re.compile(r"\b(A|B|TIE)\b")
_THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_NOT_ASKED = Shown(None, "it was not asked about this pair")


class Collected(StartedJudge):
    """Reads what the judge wrote.

    Args:
        shown: what the judge wrote about each pair, by its place and whether the policy's answer came first.
        text: who judges, for people.
    """

    def __init__(self, shown: Mapping[tuple[int, bool], Shown], *, text: str) -> None:
        self._choices = shown
        self._text = text
        self._places: Places | None = None

    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return a verdict for each pair; equal texts are ties, and were not asked about."""
        asked = [place for place, pair in enumerate(pairs) if not pair.is_same_text]
        both = [(self._choices.get((at, True), _NOT_ASKED), self._choices.get((at, False), _NOT_ASKED)) for at in asked]
        self._places = places_of(both)
        found = [Verdict(0.5)] * len(pairs)
        for place, (policy_first, reference_first) in zip(asked, both, strict=True):
            found[place] = verdict_of(policy_first, reference_first)
        return found

    def shown(self) -> str:
        """Return who judges."""
        return self._text

    def places(self) -> Places | None:
        """Return how much the order decided."""
        return self._places


def read_choice(text: str) -> Shown:
    """Return what an answer chooses: its last letter A or B, or the word TIE, behind a thought if it has one.

    Example: "Answer B is wrong, so: A" chooses the first answer; "both are fine" chooses nothing.
    """
    found = _VERDICT.findall(_THOUGHT.sub("", text))
    return Shown(_LETTERS[found[-1]]) if found else Shown(None, "its answer names neither A nor B")


def start(context: StageContext, config: EvaluatePolicyConfig, judge: EndpointJudge) -> StartedJudge:
    """Read the collected answers.

    Raises:
        MissingPrerequisiteError: there are none, or they are damaged.
    """
    role = f"{JUDGE_INPUT}_{judge.name}"
    path = context.input_path(role) / VERDICTS_FILE
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        shown = {(int(line["place"]), bool(line["policy_first"])): _shown(line) for line in lines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MissingPrerequisiteError(
            f"The answers of judge {judge.name}, {path}, cannot be read: {error}."
        ) from error
    return Collected(shown, text=f"the language model {context.input(role).origin} at an address, both orders")


def _shown(line: Mapping[str, Any]) -> Shown:
    return Shown(None, line["problem"]) if line["problem"] else read_choice(line["answer"])
