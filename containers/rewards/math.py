"""The answer of a completion, compared with the prompt's reference answers as a number or expression (math-verify).

It runs in processes that can be killed: one completion (`5^5^5^5^5`) would hold it for ever, and in threads it raises.
"""

from collections.abc import Sequence

from containers.contracts.configs.parts.rewards import MathTerm
from containers.harness.context import StageContext
from containers.rewards.base import Answered, NoValue, Reward, Rewarding, Value
from containers.rewards.processes.verifiers import compares_math
from containers.rewards.processes.workers import Workers

_NO_ANSWER = NoValue("the prompt has no reference answer")


class MathReward(Reward):
    """1 for the right answer, 0 for another one, or none."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return 1 or 0; no value without a readable reference answer, or where comparing takes too long."""
        asked = [place for place, one in enumerate(answered) if one.answer]
        jobs = [{"golds": list(answered[place].accepted), "text": answered[place].text} for place in asked]
        found: list[Value] = [_NO_ANSWER] * len(answered)
        for place, value in zip(asked, self._workers.values(jobs), strict=True):
            found[place] = value
        return found

    def close(self) -> None:
        """End the processes."""
        self._workers.close()


def start(context: StageContext, config: Rewarding, term: MathTerm) -> Reward:
    """Start the processes."""
    return MathReward(Workers(term.name, compares_math, None, cpu_s=term.cpu_s))
