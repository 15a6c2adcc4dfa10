"""The answer of a completion, compared with the prompt's reference answer letter for letter."""

from collections.abc import Sequence

from containers.contracts.configs.parts.rewards import ExactTerm
from containers.data.answers import written_answer
from containers.harness.context import StageContext
from containers.rewards.base import Answered, NoValue, Reward, Rewarding, Value


class ExactReward(Reward):
    """1 where both are the same but for white space at their ends and between words, else 0."""

    def __init__(self, *, ignore_case: bool) -> None:
        self._ignore_case = ignore_case

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return 1 or 0; no value without a reference answer."""
        return [self._value(one) for one in answered]

    def _value(self, one: Answered) -> Value:
        if not one.answer:
            return NoValue("the prompt has no reference answer")
        return float(self._normal(written_answer(one.text)) in map(self._normal, one.accepted))

    def _normal(self, text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if self._ignore_case else text


def start(context: StageContext, config: Rewarding, term: ExactTerm) -> Reward:
    """Start it."""
    return ExactReward(ignore_case=term.ignore_case)
