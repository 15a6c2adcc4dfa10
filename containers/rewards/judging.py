"""Rewards of finished completions: a policy is judged by the rewards that trained it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from containers.contracts.configs.rewards import RewardModelTerm, RewardTerm
from containers.rewards.base import Answered, StartedTerm
from containers.rewards.combine import weighted
from containers.rewards.policy_reward import RunningScale


@dataclass(frozen=True)
class Judged:
    """What the terms say about some completions, in order.

    Attributes:
        values: by name of the term, as its curve shows it; NaN where it could not tell.
        totals: the sums of the terms. A value that a term could not tell counts as 0 there, so that a completion does
            not gain by making a verifier fail.
    """

    values: Mapping[str, tuple[float, ...]]
    totals: tuple[float, ...]


def judge(started: Sequence[StartedTerm], answered: Sequence[Answered]) -> Judged:
    """Return what the terms say about each completion.

    Shaping always counts here: whether another completion of the same prompt is right changes no single completion. A
    term that training normalises by all values so far is normalised by all values of `answered`.

    Raises:
        DivergedError: a score of the reward model is not finite.
    """
    values, rewards = {}, {}
    for one in started:
        name = one.term.name
        found, rewarded = _once_each(one, answered)
        values[name] = tuple(found)
        own = torch.tensor(rewarded, dtype=torch.float64)
        rewards[name] = RunningScale().scaled(own) if one.term.normalise == "running" else own
    outcomes, shaping = weighted(rewards, [one.term for one in started])
    return Judged(values, tuple((outcomes + shaping).tolist()))


def _once_each(one: StartedTerm, answered: Sequence[Answered]) -> tuple[list[float], list[float]]:
    """Return value and reward of each completion; the same completion of a prompt is scored once.

    Scored twice, in batches of other shapes, it would have two scores that differ by rounding.
    """
    keys = [_key(one.term, item) for item in answered]
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    places = sorted(first.values())
    found, rewarded, _ = one.scored([answered[place] for place in places])
    number = {keys[place]: index for index, place in enumerate(places)}
    return [found[number[key]] for key in keys], [rewarded[number[key]] for key in keys]


def _key(term: RewardTerm, item: Answered) -> tuple[object, ...]:
    turns = tuple((turn["role"], turn["content"]) for turn in item.conversation)
    if isinstance(term, RewardModelTerm):  # it reads the text alone
        return turns, item.text
    return turns, item.answer, item.text, tuple(item.completion.completion_ids), item.completion.ended
