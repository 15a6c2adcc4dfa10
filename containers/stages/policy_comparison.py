"""The figures of policy against reference, from what both wrote. Pure.

Intervals are over prompts: the completions of one prompt are no independent observations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from containers.contracts.outcome import Metric
from containers.contracts.records import Histogram, Message, PolicyEvaluation, SideBySide
from containers.stages.prompts import PolicyPrompt
from containers.stages.rollouts import Completion
from containers.stages.statistics import bootstrap_interval

_NUM_BINS = 24


@dataclass(frozen=True)
class ComparedPrompt:
    """What both policies wrote on one held-out prompt; K completions each.

    `log_ratios` are log policy − log reference of the policy's completions, summed over tokens, in nats.
    """

    prompt: PolicyPrompt
    policy: tuple[Completion, ...]
    reference: tuple[Completion, ...]
    rewards_policy: tuple[float, ...]
    rewards_reference: tuple[float, ...]
    log_ratios: tuple[float, ...]

    @property
    def reward_difference(self) -> float:
        """Mean reward of the policy's completions minus that of the reference's."""
        return float(np.mean(self.rewards_policy) - np.mean(self.rewards_reference))

    @property
    def win_rate(self) -> float:
        """Share of all pairs of completions that the policy wins; a tie counts half.

        Example: policy [1, 3] against reference [2, 3] wins one pair of four and ties one: 0.375.
        """
        signs = np.sign(np.subtract.outer(np.array(self.rewards_policy), np.array(self.rewards_reference)))
        return float(np.mean((signs + 1) / 2))


@dataclass(frozen=True)
class _Intervals:
    """Makes a metric from one value per prompt."""

    confidence: float
    num_bootstrap: int
    seed: int

    def metric(
        self, prompts: Sequence[ComparedPrompt], name: str, unit: str, value: Callable[[ComparedPrompt], float]
    ) -> Metric:
        values = [value(prompt) for prompt in prompts]
        low, high = bootstrap_interval(
            values, confidence=self.confidence, num_bootstrap=self.num_bootstrap, seed=self.seed
        )
        return Metric(name=name, value=float(np.mean(values)), unit=unit, ci_low=low, ci_high=high, count=len(values))


def compare_policies(
    prompts: Sequence[ComparedPrompt], *, confidence: float, num_bootstrap: int, seed: int, num_samples: int
) -> PolicyEvaluation:
    """Every figure of `policy_evaluation.json`; `count` of each is the number of prompts.

    Args:
        prompts: at least one.
        confidence: level of the intervals, for example 0.95.
        num_samples: prompts shown side by side, spread evenly from the largest loss of reward to the largest gain, so
            that they show neither only the best nor only the worst.
    """
    intervals = _Intervals(confidence=confidence, num_bootstrap=num_bootstrap, seed=seed)

    def metric(name: str, unit: str, value: Callable[[ComparedPrompt], float]) -> Metric:
        return intervals.metric(prompts, name, unit, value)

    return PolicyEvaluation(
        num_prompts=len(prompts),
        reward_policy=metric("reward_policy", "score", lambda p: float(np.mean(p.rewards_policy))),
        reward_reference=metric("reward_reference", "score", lambda p: float(np.mean(p.rewards_reference))),
        reward_difference=metric("reward_difference", "score", lambda p: p.reward_difference),
        win_rate=metric("win_rate", "fraction", lambda p: p.win_rate),
        kl=metric("kl", "nats", lambda p: float(np.mean(p.log_ratios))),
        length_policy=metric("length_policy", "tokens", lambda p: _mean_length(p.policy)),
        length_reference=metric("length_reference", "tokens", lambda p: _mean_length(p.reference)),
        ended_policy=metric("ended_policy", "fraction", lambda p: _ended_share(p.policy)),
        ended_reference=metric("ended_reference", "fraction", lambda p: _ended_share(p.reference)),
        reward_differences=_histogram([prompt.reward_difference for prompt in prompts]),
        samples=_samples(prompts, num_samples),
    )


def _mean_length(completions: Sequence[Completion]) -> float:
    return float(np.mean([len(item.completion_ids) for item in completions]))


def _ended_share(completions: Sequence[Completion]) -> float:
    return float(np.mean([item.ended for item in completions]))


def _histogram(values: Sequence[float]) -> Histogram:
    counts, edges = np.histogram(values, bins=_NUM_BINS)
    return Histogram(edges=tuple(float(edge) for edge in edges), counts=tuple(int(count) for count in counts))


def _samples(prompts: Sequence[ComparedPrompt], num_samples: int) -> tuple[SideBySide, ...]:
    """The first completions of evenly spaced prompts in the order of reward difference."""
    ordered = sorted(prompts, key=lambda prompt: prompt.reward_difference)
    places = np.linspace(0, len(ordered) - 1, min(num_samples, len(ordered))).round().astype(int)
    return tuple(
        SideBySide(
            prompt=tuple(Message.model_validate(message) for message in item.prompt.conversation),
            policy=item.policy[0].text,
            reference=item.reference[0].text,
            reward_policy=item.rewards_policy[0],
            reward_reference=item.rewards_reference[0],
        )
        for item in (ordered[place] for place in places)
    )
