"""Prompts for the policy as filter_dataset leaves them, and completions of theirs, made by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as parquet

from containers.contracts.configs.parts.rewards import RewardTerm
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import POLICY_EVAL_PROMPTS_FILE, POLICY_TRAIN_PROMPTS_FILE
from containers.contracts.registries import REWARDS
from containers.harness.context import StageContext
from containers.rewards.base import Answered, Reward, StartedTerm, Value
from containers.rewards.policy_reward import PolicyReward
from containers.rollouts.generate import Completion

_SCHEMA = pa.schema(
    [
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("domain", pa.string()),
        ("prompt_id", pa.string()),
        ("answer", pa.string()),
    ]
)


def write_prompts(
    folder: Path,
    *,
    train: Sequence[str] = (),
    evaluation: Sequence[str] = ("Who?", "What is blue?"),
    answers: Sequence[str] = (),
    evaluation_answers: Sequence[str] = (),
) -> Path:
    """A filter_dataset artifact with one user turn for each text, and reference answers of the prompts."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, texts, known in (
        (POLICY_TRAIN_PROMPTS_FILE, train, answers),
        (POLICY_EVAL_PROMPTS_FILE, evaluation, evaluation_answers),
    ):
        rows = [
            {"prompt": [{"role": "user", "content": text}], "domain": "general", "prompt_id": f"prompt-{number}"}
            for number, text in enumerate(texts)
        ]
        if known:
            rows = [{**row, "answer": answer} for row, answer in zip(rows, known, strict=True)]
        parquet.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), folder / file)
    return folder


QUESTION = ({"role": "user", "content": "Hi"},)


def completion(text: str, *, tokens: int = 1, ended: bool = True) -> Completion:
    return Completion(prompt_ids=(1,), completion_ids=(4,) * tokens, text=text, ended=ended)


def answered(
    text: str,
    answer: str | None = None,
    *,
    prompt: Sequence[Mapping[str, str]] = QUESTION,
    tokens: int = 1,
    ended: bool = True,
    opening: str = "",
    other_answers: tuple[str, ...] = (),
) -> Answered:
    written = completion(text, tokens=tokens, ended=ended)
    return Answered(prompt, written, opening, answer, other_answers=other_answers)


def rewarded(reward: Reward, rows: Sequence[Answered], **settings: Any) -> tuple[list[float], list[float]]:
    """Values and rewards of completions of one prompt, by this reward as the only term of a configuration."""
    config = TrainPolicyConfig(num_generations=len(rows), **settings)
    policy = PolicyReward([StartedTerm(config.rewards[0], reward)], config)
    scored = policy.scored(rows)
    found = policy.combined(scored, [row.completion for row in rows])
    return [row.values[config.rewards[0].name] for row in scored], found.rewards.tolist()


def started(term: RewardTerm) -> Reward:
    """The reward of a term that needs nothing of the stage."""
    found: Reward = REWARDS[term.type](cast(StageContext, None), TrainPolicyConfig(), term)
    return found


def values_of(term: RewardTerm, *rows: Answered) -> list[Value]:
    reward = started(term)
    try:
        return reward.values(rows)
    finally:
        reward.close()
