"""How much of a completion repeats itself."""

from collections.abc import Sequence

from containers.contracts.configs.parts.rewards import RepetitionTerm
from containers.harness.context import StageContext
from containers.rewards.base import Answered, Reward, Rewarding, Value


class RepetitionReward(Reward):
    """Minus the share of word sequences that came before."""

    def __init__(self, words: int) -> None:
        self._words = words

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return a value from -1 to 0 for each completion.

        Example: with sequences of 2 words, `a b a b a` has 4 of them, of which 2 came before: -0.5.
        """
        return [self._value(one.text.split()) for one in answered]

    def _value(self, words: Sequence[str]) -> float:
        sequences = [tuple(words[start : start + self._words]) for start in range(len(words) - self._words + 1)]
        return len(set(sequences)) / len(sequences) - 1 if sequences else 0.0


def start(context: StageContext, config: Rewarding, term: RepetitionTerm) -> Reward:
    """Start it."""
    return RepetitionReward(term.words)
