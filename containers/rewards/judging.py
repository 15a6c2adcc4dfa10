"""Rewards of finished completions: a policy is judged by the rewards that trained it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from containers.contracts.configs.parts.rewards import RewardModelTerm, RewardTerm
from containers.rewards.base import Answered, SeveralRewards, StartedTerm
from containers.rewards.combine import weighted
from containers.rewards.policy_reward import RunningScale


@dataclass(frozen=True)
class Judged:
    """What the terms say about some completions, in order.

    Attributes:
        values: by name of the term, as its curve shows it; NaN where it could not tell. Of several reward models also
            the reward by each, by the names of `members_of`.
        totals: the sums of the terms. A value that a term could not tell counts as 0 there, so that a completion does
            not gain by making a verifier fail.
    """

    values: Mapping[str, tuple[float, ...]]
    totals: tuple[float, ...]


def compared_terms(rewards: Sequence[RewardTerm]) -> tuple[RewardTerm, ...]:
    """Return what to compare one by one: the terms and their members; none where the only one is the sum already."""
    only = rewards[0] if len(rewards) == 1 else None
    if isinstance(only, RewardModelTerm):
        return members_of(only)
    return tuple(one for term in rewards for one in (term, *members_of(term)))


def members_of(term: RewardTerm) -> tuple[RewardTerm, ...]:
    """Return a term for each of several reward models; none of any other term."""
    return term.members if isinstance(term, RewardModelTerm) else ()


def judge(started: Sequence[StartedTerm], answered: Sequence[Answered]) -> Judged:
    """Return what the terms say about each completion.

    Shaping always counts here: whether another completion of the same prompt is right changes no single completion. A
    term that training normalises by all values so far is normalised by all values of `answered`.

    Raises:
        DivergedError: a score of the reward model is not finite.
    """
    values: dict[str, tuple[float, ...]] = {}
    rewards: dict[str, torch.Tensor] = {}
    for one in started:
        name = one.term.name
        if isinstance(one.reward, SeveralRewards):
            members = [_once_each(StartedTerm(one.term, member), answered)[1] for member in one.reward.members]
            values |= {term.name: tuple(own) for term, own in zip(members_of(one.term), members, strict=True)}
            found = rewarded = one.reward.together(members)
        else:
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
