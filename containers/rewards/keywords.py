"""Texts that a completion should have, and texts that it should not."""

from collections.abc import Sequence

from containers.contracts.configs.parts.rewards import KeywordsTerm
from containers.harness.context import StageContext
from containers.rewards.base import Answered, Reward, Rewarding, Value


class KeywordsReward(Reward):
    """The share of the required texts that are there, less the share of the forbidden ones that are."""

    def __init__(self, required: Sequence[str], forbidden: Sequence[str]) -> None:
        self._required = [text.casefold() for text in required]
        self._forbidden = [text.casefold() for text in forbidden]

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return a value from -1 to 1 for each completion."""
        return [self._share(one, self._required) - self._share(one, self._forbidden) for one in answered]

    def _share(self, one: Answered, wanted: Sequence[str]) -> float:
        text = one.text.casefold()
        return sum(word in text for word in wanted) / len(wanted) if wanted else 0.0


def start(context: StageContext, config: Rewarding, term: KeywordsTerm) -> Reward:
    """Start it."""
    return KeywordsReward(term.required, term.forbidden)
