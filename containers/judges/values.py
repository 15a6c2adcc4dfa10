"""A judge that gives each completion a value: of two completions the one with the higher value is better."""

from collections.abc import Sequence
from pathlib import Path

from containers.contracts.configs.parts.judges import Judge, same_judge
from containers.contracts.configs.parts.rewards import PythonTerm
from containers.contracts.records import SCORE_TOLERANCE
from containers.contracts.registries import REWARDS
from containers.harness.context import StageContext
from containers.judges.base import Pair, StartedJudge, Verdict, trained_by_rewards
from containers.rewards.base import Answered, NoValue, Reward, Rewarding, Value

_SHOWN = {
    "math": "the reference answers, as numbers and expressions",
    "exact": "the reference answers, letter for letter",
    "regex": "a pattern",
    "format": "a rule about tags",
    "json_schema": "a JSON schema",
    "length": "a rule about length",
    "keywords": "a rule about words",
    "repetition": "a rule about repetition",
    "language": "a rule about language",
}


class ValueJudge(StartedJudge):
    """Judges by the values of a reward.

    Args:
        part: what it had to do with the training, as a clause; empty: nothing.
    """

    def __init__(self, reward: Reward, *, shown: str, part: str) -> None:
        self.reward = reward
        self._shown = shown
        self._part = part

    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return a verdict for each pair; equal values, and equal texts, are ties."""
        found = self.reward.values([side for pair in pairs for side in (pair.policy, pair.reference)])
        return [
            verdict_by_values(pair, policy, reference)
            for pair, policy, reference in zip(pairs, found[::2], found[1::2], strict=True)
        ]

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return the value of each completion."""
        return self.reward.values(answered)

    def shown(self) -> str:
        """Return who judges."""
        return self._shown

    def part_in_training(self) -> str:
        """Return what it had to do with the training."""
        return self._part

    def close(self) -> None:
        """End what the reward started."""
        self.reward.close()


def verdict_by_values(pair: Pair, policy: Value, reference: Value) -> Verdict:
    """Return the verdict on a pair whose completions have these values."""
    for value in (policy, reference):
        if isinstance(value, NoValue):
            return Verdict(None, value.reason)
    assert not isinstance(policy, NoValue) and not isinstance(reference, NoValue)  # noqa: S101 - for mypy
    difference, values = policy - reference, (policy, reference)
    if pair.is_same_text or abs(difference) <= SCORE_TOLERANCE:
        return Verdict(0.5, values=values)
    return Verdict(float(difference > 0), values=values)


def start(context: StageContext, config: Rewarding, judge: Judge) -> StartedJudge:
    """Start the reward of that type as a judge."""
    shown = (
        f"the function {judge.function} of {Path(judge.file).name}"
        if isinstance(judge, PythonTerm)
        else _SHOWN[judge.type]
    )
    trained = any(same_judge(judge, reward) for reward in config.rewards) and trained_by_rewards(config)
    part = "it is one of the rewards that the policy was trained on" if trained else ""
    return ValueJudge(REWARDS[judge.type](context, config, judge), shown=shown, part=part)
