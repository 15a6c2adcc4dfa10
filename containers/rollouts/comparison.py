"""Figures and plots that compare policy and reference by their completions.

Intervals are over prompts: the completions of one prompt are not independent observations.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from containers.contracts.configs.parts.rewards import RewardModelTerm, RewardTerm
from containers.contracts.outcome import Metric
from containers.contracts.records import (
    SCORE_TOLERANCE,
    ComparedTerm,
    Message,
    PolicyEvaluation,
    SideBySide,
    Winner,
)
from containers.evals.statistics import histogram, mean_metric, share_metric
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompt

_NUM_BINS = 24
_POINTS: dict[Winner, float] = {"policy": 1.0, "tie": 0.5, "reference": 0.0}
_POLICY, _REFERENCE = "#2a6f97", "#b0b7bf"


@dataclass(frozen=True)
class ComparedPrompt:
    """The completions of policy and reference on one held-out prompt; K each.

    `log_ratios` are log policy − log reference of the policy's completions, summed over tokens, in nats. `values_…` are
    those of each reward by its name; NaN where it could not tell. `points` are those of each judge by its name, for the
    completions with the same number: 1 where the policy's is better, 0.5 for a tie; None where it could not tell.
    """

    prompt: PolicyPrompt
    policy: tuple[Completion, ...]
    reference: tuple[Completion, ...]
    rewards_policy: tuple[float, ...]
    rewards_reference: tuple[float, ...]
    log_ratios: tuple[float, ...]
    values_policy: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    values_reference: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    points: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)

    @property
    def reward_difference(self) -> float:
        """Mean reward of the policy's completions minus mean reward of the reference's."""
        return fmean(self.rewards_policy) - fmean(self.rewards_reference)

    @property
    def win_rate(self) -> float:
        """Share of all pairs of completions that the policy wins; a tie counts half.

        Example: policy [1, 3] against reference [2, 3] wins one pair of four and ties one: 0.375.
        """
        size = range(len(self.policy))
        return fmean(_POINTS[self.winner(own, other)] for own in size for other in size)

    def winner(self, own: int, other: int) -> Winner:
        """Return which completion scores higher: the policy's number `own` or the reference's number `other`.

        Equal texts are a tie, and so are scores within `SCORE_TOLERANCE`: float32 cannot tell them apart.
        """
        difference = self.rewards_policy[own] - self.rewards_reference[other]
        if self.policy[own].text == self.reference[other].text or abs(difference) <= SCORE_TOLERANCE:
            return "tie"
        return "policy" if difference > 0 else "reference"

    @property
    def identical(self) -> tuple[bool, ...]:
        """Per completion, whether the reference wrote the same text with the same seed."""
        return tuple(own.text == other.text for own, other in zip(self.policy, self.reference, strict=True))


def compare_policies(
    prompts: Sequence[ComparedPrompt], *, confidence: float, num_samples: int, terms: Sequence[RewardTerm] = ()
) -> PolicyEvaluation:
    """Return all figures of `policy_evaluation.json`; `count` is prompts, except for identical completions.

    Intervals are over prompts.

    Args:
        prompts: at least one.
        confidence: level of the intervals, for example 0.95.
        num_samples: number of prompts shown side by side, evenly spaced from the largest loss of reward to the largest
            gain.
        terms: the rewards to compare one by one.
    """

    def mean(name: str, unit: str, value: Callable[[ComparedPrompt], float]) -> Metric:
        return mean_metric([value(prompt) for prompt in prompts], name=name, unit=unit, confidence=confidence)

    def share(name: str, value: Callable[[ComparedPrompt], float]) -> Metric:
        return share_metric([value(prompt) for prompt in prompts], name=name, confidence=confidence)

    same = [identical for prompt in prompts for identical in prompt.identical]
    return PolicyEvaluation(
        num_prompts=len(prompts),
        terms=tuple(_compared_term(prompts, term, confidence=confidence) for term in terms),
        reward_policy=mean("reward_policy", "score", lambda p: fmean(p.rewards_policy)),
        reward_reference=mean("reward_reference", "score", lambda p: fmean(p.rewards_reference)),
        reward_difference=mean("reward_difference", "score", lambda p: p.reward_difference),
        win_rate=share("win_rate", lambda p: p.win_rate),
        kl=mean("kl", "nats", lambda p: fmean(p.log_ratios)),
        length_policy=mean("length_policy", "tokens", lambda p: _mean_length(p.policy)),
        length_reference=mean("length_reference", "tokens", lambda p: _mean_length(p.reference)),
        ended_policy=share("ended_policy", lambda p: _ended_share(p.policy)),
        ended_reference=share("ended_reference", lambda p: _ended_share(p.reference)),
        identical_completions=Metric(name="identical_completions", value=fmean(same), unit="fraction", count=len(same)),
        reward_differences=histogram([prompt.reward_difference for prompt in prompts], num_bins=_NUM_BINS),
        samples=_samples(prompts, num_samples),
    )


def _compared_term(prompts: Sequence[ComparedPrompt], term: RewardTerm, *, confidence: float) -> ComparedTerm:
    """Compare one reward; values that it could not tell count as 0, as in the sum of the rewards."""
    sides = [(prompt.values_policy[term.name], prompt.values_reference[term.name]) for prompt in prompts]
    policy, reference = ([fmean(map(_told, side)) for side in column] for column in zip(*sides, strict=True))
    unit = "fraction" if term.is_outcome else "score"

    def of(values: Sequence[float], side: str) -> Metric:
        name = f"{term.name}_{side}"
        if term.is_outcome and all(0 <= value <= 1 for value in values):
            return share_metric(values, name=name, confidence=confidence)
        return mean_metric(values, name=name, unit=unit, confidence=confidence)

    gains = [own - other for own, other in zip(policy, reference, strict=True)]
    return ComparedTerm(
        name=term.name,
        is_outcome=term.is_outcome,
        policy=of(policy, "policy"),
        reference=of(reference, "reference"),
        difference=mean_metric(gains, name=f"{term.name}_difference", unit=unit, confidence=confidence),
        only_measures=isinstance(term, RewardModelTerm) and term.only_measures,
        num_unscorable=sum(math.isnan(value) for side in sides for values in side for value in values),
    )


def _told(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _mean_length(completions: Sequence[Completion]) -> float:
    return fmean(len(item.completion_ids) for item in completions)


def _ended_share(completions: Sequence[Completion]) -> float:
    return fmean(item.ended for item in completions)


def _samples(prompts: Sequence[ComparedPrompt], num_samples: int) -> tuple[SideBySide, ...]:
    """Return the first completions of evenly spaced prompts, in the order of reward difference."""
    ordered = sorted(prompts, key=lambda prompt: prompt.reward_difference)
    places = np.linspace(0, len(ordered) - 1, min(num_samples, len(ordered))).round().astype(int)
    return tuple(
        SideBySide(
            prompt=tuple(Message.model_validate(message) for message in item.prompt.conversation),
            policy=item.policy[0].text,
            reference=item.reference[0].text,
            reward_policy=item.rewards_policy[0],
            reward_reference=item.rewards_reference[0],
            winner=item.winner(0, 0),
            judged=tuple((name, _winner_by(points[0])) for name, points in item.points.items()),
        )
        for item in (ordered[place] for place in places)
    )


def _winner_by(points: float | None) -> Winner | None:
    if points is None:
        return None
    return "tie" if points == _POINTS["tie"] else "policy" if points > _POINTS["tie"] else "reference"


def write_policy_plots(prompts: Sequence[ComparedPrompt], folder: Path) -> None:
    """Write `rewards.png`, `reward_differences.png`, `kl_and_reward.png` and `lengths.png` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _overlaid(
        [reward for prompt in prompts for reward in prompt.rewards_policy],
        [reward for prompt in prompts for reward in prompt.rewards_reference],
        folder / "rewards.png",
        label="Reward",
    )
    _overlaid(
        [float(len(item.completion_ids)) for prompt in prompts for item in prompt.policy],
        [float(len(item.completion_ids)) for prompt in prompts for item in prompt.reference],
        folder / "lengths.png",
        label="Length of the completion, tokens",
    )
    _differences([prompt.reward_difference for prompt in prompts], folder / "reward_differences.png")
    _kl_and_reward(prompts, folder / "kl_and_reward.png")


def _overlaid(policy: Sequence[float], reference: Sequence[float], path: Path, *, label: str) -> None:
    """Plot both distributions in the same bins."""
    edges = np.histogram_bin_edges([*policy, *reference], bins=30).tolist()
    with _plot(path) as axes:
        axes.hist(reference, bins=edges, color=_REFERENCE, label="reference")
        axes.hist(policy, bins=edges, color=_POLICY, alpha=0.65, label="policy")
        axes.set(xlabel=label, ylabel="Completions")
        axes.legend(frameon=False)


def _differences(values: Sequence[float], path: Path) -> None:
    with _plot(path) as axes:
        axes.hist(values, bins=24, color=_POLICY)
        axes.axvline(0, color="black", linewidth=1)
        axes.axvline(float(np.mean(values)), color="#d1495b", linewidth=1.5, label=f"mean {np.mean(values):+.3f}")
        axes.set(xlabel="Reward of the policy minus reward of the reference, by prompt", ylabel="Prompts")
        axes.legend(frameon=False)


def _kl_and_reward(prompts: Sequence[ComparedPrompt], path: Path) -> None:
    """Plot reward difference against the distance from the reference."""
    log_ratios = [float(np.mean(prompt.log_ratios)) for prompt in prompts]
    with _plot(path) as axes:
        axes.scatter(log_ratios, [prompt.reward_difference for prompt in prompts], s=14, color=_POLICY, alpha=0.7)
        axes.axhline(0, color="black", linewidth=1)
        axes.set(xlabel="log policy − log reference of the policy's completions, nats", ylabel="Reward difference")


@contextmanager
def _plot(path: Path) -> Iterator[Axes]:
    """Give the axes to draw on, and then write the figure."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    yield axes
    axes.spines[["top", "right"]].set_visible(False)
    # Without matplotlib's version in the file, the same figures give the same bytes.
    figure.savefig(path, dpi=130, metadata={"Software": None})
