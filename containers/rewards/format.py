"""Whether a completion is a thought and an answer, each in its tags."""

import re
from collections.abc import Sequence

from containers.contracts.configs.parts.rewards import FormatTerm
from containers.harness.context import StageContext
from containers.rewards.base import Answered, Reward, Rewarding, Value


class FormatReward(Reward):
    """1 for `<think>…</think> <answer>…</answer>` with nothing else, else 0.

    The chat template may write the first tag itself; it counts as written.
    """

    def __init__(self, thought: str, answer: str) -> None:
        self._tags = [f"<{thought}>", f"</{thought}>", f"<{answer}>", f"</{answer}>"]

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return 1 or 0 for each completion."""
        return [float(self._fits(one)) for one in answered]

    def _fits(self, one: Answered) -> bool:
        first, second, third, last = self._tags
        opened = one.opening.rfind(first)
        text = f"{one.opening[opened:] if opened >= 0 else ''}{one.text}".strip()
        if any(text.count(tag) != 1 for tag in self._tags):
            return False
        between = re.search(f"{re.escape(second)}\\s*{re.escape(third)}", text)
        return between is not None and text.startswith(first) and text.endswith(last)


def start(context: StageContext, config: Rewarding, term: FormatTerm) -> Reward:
    """Start it."""
    return FormatReward(term.thought, term.answer)
