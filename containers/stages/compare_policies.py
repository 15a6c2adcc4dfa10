"""compare_policies: judge what the policies of several arms wrote on the same prompts, each against each."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from containers.arms.matrix import Points, arm_cell, arm_value, corrected, pairs_of_arms
from containers.arms.records import REWARDS, START, JudgedArms, PolicyComparison
from containers.contracts.configs.compare_policies import ComparePoliciesConfig
from containers.contracts.configs.parts.judges import Judge, PeopleJudge
from containers.contracts.names import (
    COMPARED_FILE,
    COMPLETIONS_FILE,
    POLICY_COMPARISON_FILE,
    POLICY_EVALUATION_FILE,
    SAMPLED_FILE,
)
from containers.contracts.outcome import Metric
from containers.contracts.records import PolicyEvaluation
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError, MissingPrerequisiteError
from containers.judges.base import Pair, StartedJudge, Verdict, start_judge
from containers.judges.values import verdict_by_values
from containers.rewards.base import Answered, NoValue, Value
from containers.rollouts.sampled import Sampled, read_sampled

# By arm and seed.
Trained = tuple[str, int]


@dataclass(frozen=True)
class Contestant:
    """One policy: what it wrote, in the order of prompts and numbers, and the reward of each completion."""

    answered: Sequence[Answered]
    rewards: Sequence[float]


@dataclass(frozen=True)
class Contest:
    """All policies on the same prompts.

    Attributes:
        prompt_ids: of each completion.
        seeds: of each arm, in the order of the tables.
    """

    contestants: Mapping[Trained, Contestant]
    prompt_ids: Sequence[str]
    seeds: Mapping[str, Sequence[int]]
    confidence: float

    @property
    def pairs(self) -> list[tuple[Trained, Trained]]:
        """The policies that are compared; the start model is one with each seed."""
        return [((arm, seed), (other, its)) for arm, seed, other, its in pairs_of_arms(self.seeds)]

    def contestant(self, trained: Trained) -> Contestant:
        """Return that policy, or the start model."""
        return self.contestants[(START, 0) if trained[0] == START else trained]


def run(context: StageContext) -> tuple[Metric, ...]:
    """Write `policy_comparison.json`, and `compared.parquet` with a row for each judge and pair of completions.

    Raises:
        BadDataError: the policies were not judged on the same prompts, or did not start from one model.
        MissingPrerequisiteError: an artifact is missing or damaged.
    """
    config = context.spec.config
    if not isinstance(config, ComparePoliciesConfig):
        raise BadConfigError(f"compare_policies was given the config of {config.stage}.")
    contest = _contest(context, config)
    trained = _took_part(context, config)
    judged: list[JudgedArms] = []
    rows: list[dict[str, Any]] = []
    for judge in config.evaluation.judges:
        if isinstance(judge, PeopleJudge):
            continue  # what they said of each policy and its reference is in its own report
        found, of_pairs = _judged(context, config, contest, judge)
        judged.append(found.model_copy(update={"trained": trained.get(judge.name, ())}))
        rows += of_pairs
    if config.same_rewards:
        found, of_pairs = _by_rewards(contest)
        judged.append(found.model_copy(update={"trained": tuple(arm for arm in contest.seeds if arm != START)}))
        rows += of_pairs
    comparison = PolicyComparison(
        arms=tuple(contest.seeds),
        num_prompts=len(set(contest.prompt_ids)),
        completions_per_prompt=len(contest.prompt_ids) // len(set(contest.prompt_ids)),
        judges=corrected(judged),
    )
    (context.output / POLICY_COMPARISON_FILE).write_text(comparison.model_dump_json(indent=2), encoding="utf-8")
    parquet.write_table(pa.Table.from_pylist(rows), context.output / COMPARED_FILE)
    return tuple(
        metric.model_copy(update={"name": f"{judge.name}_{metric.name}"})
        for judge in comparison.judges
        for metric in chain((cell.win_rate for cell in judge.cells), (value.value for value in judge.values))
    )


def _contest(context: StageContext, config: ComparePoliciesConfig) -> Contest:
    """Read every policy's completions, and check that they answer the same prompts."""
    sampled = [
        read_sampled(context.input_path(f"completions_{place}") / SAMPLED_FILE) for place in range(len(config.policies))
    ]
    prompts = [_asked(one) for one in sampled]
    for policy, asked in zip(config.policies, prompts, strict=True):
        if asked != prompts[0]:
            first = config.policies[0]
            raise BadDataError(
                f"The policies answered different prompts: {first.arm} with seed {first.seed} {len(prompts[0]):,}, "
                f"{policy.arm} with seed {policy.seed} {len(asked):,}, and they are not the same in the same order. "
                "Arms are compared on the same held-out prompts: give all of them the same data, filters, run.seed "
                "and evaluate_policy."
            )
    contestants: dict[Trained, Contestant] = {}
    seeds: dict[str, list[int]] = {}
    if config.with_start:
        if len({tuple(_texts(one.reference)) for one in sampled}) > 1:
            raise BadDataError("The start models of the policies wrote different texts, so they are not one model.")
        rewards = _rewards(context, 0, "reward_reference")
        contestants[START, 0] = Contestant(_answered(sampled[0], reference=True), rewards)
        seeds[START] = []
    for place, (policy, one) in enumerate(zip(config.policies, sampled, strict=True)):
        contestants[policy.arm, policy.seed] = Contestant(_answered(one), _rewards(context, place, "reward_policy"))
        seeds.setdefault(policy.arm, []).append(policy.seed)
    prompt_ids = [prompt.prompt_id for prompt in sampled[0].repeated]
    return Contest(contestants, prompt_ids, seeds, config.evaluation.confidence)


def _asked(sampled: Sampled) -> list[tuple[str, tuple[int, ...]]]:
    return [(prompt.prompt_id, tuple(prompt.token_ids)) for prompt in sampled.repeated]


def _texts(completions: Sequence[Any]) -> list[str]:
    return [completion.text for completion in completions]


def _answered(sampled: Sampled, *, reference: bool = False) -> list[Answered]:
    side = sampled.reference if reference else sampled.policy
    return [
        Answered.of(prompt, completion, opening=sampled.opening)
        for prompt, completion in zip(sampled.repeated, side, strict=True)
    ]


def _rewards(context: StageContext, place: int, column: str) -> list[float]:
    path = context.input_path(f"verdict_{place}") / COMPLETIONS_FILE
    try:
        found: list[float] = parquet.read_table(path, columns=[column])[column].to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise MissingPrerequisiteError(f"{path} is no readable parquet file of judged completions: {error}") from error
    return found


def _took_part(context: StageContext, config: ComparePoliciesConfig) -> dict[str, tuple[str, ...]]:
    """Return for each judge the arms in whose training it took part, as the evaluation of each policy found."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for place, policy in enumerate(config.policies):
        path = context.input_path(f"verdict_{place}") / POLICY_EVALUATION_FILE
        evaluation = PolicyEvaluation.read_if_valid(path)
        for judge in evaluation.judges if evaluation else ():
            if judge.part_in_training and policy.arm not in found[judge.name]:
                found[judge.name].append(policy.arm)
    return {name: tuple(arms) for name, arms in found.items()}


def _judged(
    context: StageContext, config: ComparePoliciesConfig, contest: Contest, judge: Judge
) -> tuple[JudgedArms, list[dict[str, Any]]]:
    """Return what that judge says of all arms, and a row for each pair of completions."""
    total = len(contest.pairs) * len(contest.prompt_ids)
    context.recorder.progress(0, total, unit="pairs", text=f"judged by {judge.name}")
    started = start_judge(context, config.evaluation, judge)
    try:
        values = _values(started, contest)
        verdicts = _verdicts(started, contest, values)
        places = started.places()
        found = JudgedArms(
            name=judge.name,
            type=judge.type,
            shown=started.shown(),
            is_outcome=_is_outcome(judge, values),
            problem=places.problem if places is not None else "",
        )
    finally:
        started.close()
    context.recorder.progress(total, total, unit="pairs", text=f"judged by {judge.name}")
    return _with_figures(found, contest, verdicts, values)


def _is_outcome(judge: Judge, values: Mapping[Trained, Sequence[Value]]) -> bool:
    told = {value for of in values.values() for value in of if not isinstance(value, NoValue)}
    return bool(getattr(judge, "is_outcome", False)) and told.issubset({0.0, 1.0})


def _values(started: StartedJudge, contest: Contest) -> dict[Trained, Sequence[Value]]:
    """Return the value of each completion of each policy; empty for a judge that sees pairs only."""
    found: dict[Trained, Sequence[Value]] = {}
    for trained, contestant in contest.contestants.items():
        values = started.values(contestant.answered)
        if values is None:
            return {}
        found[trained] = values
    return found


def _verdicts(
    started: StartedJudge, contest: Contest, values: Mapping[Trained, Sequence[Value]]
) -> list[list[Verdict]]:
    """Return for each two policies a verdict on each pair of completions."""
    pairs = [
        [
            Pair(own, other)
            for own, other in zip(contest.contestant(one).answered, contest.contestant(its).answered, strict=True)
        ]
        for one, its in contest.pairs
    ]
    if values:
        return [
            [verdict_by_values(*each) for each in zip(of, values[one], values[_known(its)], strict=True)]
            for of, (one, its) in zip(pairs, contest.pairs, strict=True)
        ]
    flat = iter(started.verdicts(list(chain.from_iterable(pairs))))
    return [[next(flat) for _ in of] for of in pairs]


def _known(trained: Trained) -> Trained:
    return (START, 0) if trained[0] == START else trained


def _by_rewards(contest: Contest) -> tuple[JudgedArms, list[dict[str, Any]]]:
    """Return the same by the rewards, which were computed when each policy was judged."""
    values: dict[Trained, Sequence[Value]] = {
        trained: contestant.rewards for trained, contestant in contest.contestants.items()
    }
    verdicts = [
        [
            verdict_by_values(Pair(own, other), *rewards)
            for own, other, *rewards in zip(
                contest.contestant(one).answered,
                contest.contestant(its).answered,
                contest.contestant(one).rewards,
                contest.contestant(its).rewards,
                strict=True,
            )
        ]
        for one, its in contest.pairs
    ]
    found = JudgedArms(name=REWARDS, type=REWARDS, shown="the rewards, summed, by which each policy was judged")
    return _with_figures(found, contest, verdicts, values)


def _with_figures(
    found: JudgedArms,
    contest: Contest,
    verdicts: Sequence[Sequence[Verdict]],
    values: Mapping[Trained, Sequence[Value]],
) -> tuple[JudgedArms, list[dict[str, Any]]]:
    of_arms: defaultdict[tuple[str, str], dict[int, Points]] = defaultdict(dict)
    for (one, its), of_pair in zip(contest.pairs, verdicts, strict=True):
        of_arms[one[0], its[0]][one[1]] = [verdict.points for verdict in of_pair]
    cells = (
        arm_cell(arm, other, points, contest.prompt_ids, confidence=contest.confidence)
        for (arm, other), points in of_arms.items()
    )
    by_arm = (
        arm_value(
            arm,
            {seed: _numbers(values[arm, seed]) for seed in seeds or (0,)},
            contest.prompt_ids,
            is_outcome=found.is_outcome,
            confidence=contest.confidence,
        )
        for arm, seeds in (contest.seeds.items() if values else ())
    )
    update = {
        "cells": tuple(cell for cell in cells if cell is not None),
        "values": tuple(value for value in by_arm if value is not None),
        "num_untold": sum(verdict.points is None for of_pair in verdicts for verdict in of_pair),
    }
    return found.model_copy(update=update), _rows(found.name, contest, verdicts, values)


def _numbers(values: Sequence[Value]) -> Points:
    return [None if isinstance(value, NoValue) else value for value in values]


def _rows(
    judge: str,
    contest: Contest,
    verdicts: Sequence[Sequence[Verdict]],
    values: Mapping[Trained, Sequence[Value]],
) -> list[dict[str, Any]]:
    """Return a row for each pair of completions, so that every figure can be computed again."""
    of_each = len(contest.prompt_ids) // len(set(contest.prompt_ids))

    def value(trained: Trained, place: int) -> float | None:
        found = values[_known(trained)][place] if values else None
        return None if isinstance(found, NoValue) else found

    return [
        {
            "judge": judge,
            "arm": one[0],
            "seed": one[1],
            "other": its[0],
            "other_seed": its[1],
            "prompt_id": contest.prompt_ids[place],
            "number": place % of_each,
            "points": verdict.points,
            "untold": verdict.reason,
            "value": value(one, place),
            "other_value": value(its, place),
        }
        for (one, its), of_pair in zip(contest.pairs, verdicts, strict=True)
        for place, verdict in enumerate(of_pair)
    ]
