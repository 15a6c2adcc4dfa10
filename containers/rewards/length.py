"""How far a completion's length is from a target."""

from collections.abc import Sequence

from containers.contracts.configs.parts.rewards import LengthTerm
from containers.harness.context import StageContext
from containers.rewards.base import Answered, Reward, Rewarding, Value


class LengthReward(Reward):
    """0 within the target, falling to -1 beside it."""

    def __init__(self, target: tuple[int, int], *, slope_tokens: int) -> None:
        self._fewest, self._most = target
        self._slope_tokens = slope_tokens

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return the value of each completion.

        Example: with the target 50 to 400 and a slope of 100, 450 tokens give -0.5, and 600 give -1.
        """
        return [self._value(len(one.completion.completion_ids)) for one in answered]

    def _value(self, tokens: int) -> float:
        beside = max(self._fewest - tokens, tokens - self._most, 0)
        return -min(beside / self._slope_tokens, 1.0) if beside else 0.0


def start(context: StageContext, config: Rewarding, term: LengthTerm) -> Reward:
    """Start it."""
    return LengthReward(term.target, slope_tokens=term.slope_tokens)
