"""The prompts set aside for the policy: read, measured in tokens, and put into a repeatable order."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from containers.contracts.names import POLICY_EVAL_PROMPTS_FILE, POLICY_TRAIN_PROMPTS_FILE
from containers.contracts.stage_configs import EvaluatePolicyConfig, TrainPolicyConfig
from containers.stages.errors import BadConfigError, BadDataError, MissingPrerequisiteError
from containers.stages.rollouts import prompt_token_ids

# One prompt alone has an interval of width zero, which any gate would take for certainty.
_MIN_EVAL_PROMPTS = 2


@dataclass(frozen=True)
class PolicyPrompt:
    """One prompt of the policy: its conversation, and its token ids up to where the assistant begins to write."""

    prompt_id: str
    domain: str
    conversation: tuple[dict[str, str], ...]
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class PolicyPrompts:
    """Prompts that fit, and the number that were too long."""

    prompts: tuple[PolicyPrompt, ...]
    left_out: int


def read_training_prompts(pairs: Path, tokenizer: Any, config: TrainPolicyConfig) -> PolicyPrompts:
    """The prompts that the policy trains on, of those that fit, in file order.

    Args:
        pairs: artifact of filter_dataset.

    Raises:
        MissingPrerequisiteError: the file is missing, damaged, or lacks a column.
        BadDataError: it holds no prompt, or none that fits.
    """
    return _that_fit(
        pairs / POLICY_TRAIN_PROMPTS_FILE,
        tokenizer,
        max_length=config.max_prompt_length,
        setting="train_policy.max_prompt_length",
        minimum=1,
        purpose="train the policy on",
    )


def read_evaluation_prompts(
    pairs: Path, tokenizer: Any, config: TrainPolicyConfig | EvaluatePolicyConfig
) -> PolicyPrompts:
    """The held-out prompts that the policy is judged on, of those that fit, in file order.

    train_policy reads them too, before it trains a policy that could not be judged; by the length of evaluate_policy
    where it is told, else by its own, which is never the longer one.

    Args:
        pairs: artifact of filter_dataset.

    Raises:
        MissingPrerequisiteError: the file is missing, damaged, or lacks a column.
        BadDataError: fewer than two fit.
    """
    max_length, setting = config.max_prompt_length, f"{config.stage}.max_prompt_length"
    if isinstance(config, TrainPolicyConfig) and config.evaluation_prompt_length is not None:
        max_length, setting = config.evaluation_prompt_length, "evaluate_policy.max_prompt_length"
    return _that_fit(
        pairs / POLICY_EVAL_PROMPTS_FILE,
        tokenizer,
        max_length=max_length,
        setting=setting,
        minimum=_MIN_EVAL_PROMPTS,
        purpose="judge the policy on",
    )


def _that_fit(
    path: Path, tokenizer: Any, *, max_length: int, setting: str, minimum: int, purpose: str
) -> PolicyPrompts:
    rows = _read_rows(path)
    if not rows:
        raise BadDataError(
            f"{path.name} has no prompt to {purpose}. Raise filter_dataset.policy_prompt_fraction or "
            f"policy_eval_prompt_fraction."
        )
    conversations = [[_message(message) for message in row["prompt"]] for row in rows]
    encoded = prompt_token_ids(tokenizer, conversations)
    prompts = tuple(
        PolicyPrompt(
            prompt_id=row["prompt_id"], domain=row["domain"] or "", conversation=tuple(turns), token_ids=tuple(ids)
        )
        for row, turns, ids in zip(rows, conversations, encoded, strict=True)
        if len(ids) <= max_length
    )
    if len(prompts) < minimum:
        lengths = [len(ids) for ids in encoded]
        raise BadDataError(
            f"{path.name} has {len(rows):,} prompts to {purpose}, of which {len(prompts)} fit in {setting} "
            f"{max_length}; at least {minimum} must. The shortest has {min(lengths):,} tokens, the "
            f"longest {max(lengths):,}. Raise {setting}, or set more prompts aside "
            f"(filter_dataset.policy_prompt_fraction, policy_eval_prompt_fraction)."
        )
    return PolicyPrompts(prompts=prompts, left_out=len(rows) - len(prompts))


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path, columns=["prompt", "domain", "prompt_id"]).to_pylist()
    except Exception as error:
        raise MissingPrerequisiteError(f"{path} is no readable parquet file of prompts: {error}") from error
    return rows


def check_lengths(config: TrainPolicyConfig | EvaluatePolicyConfig, *, max_positions: int, name: str) -> None:
    """Refuse a longest prompt plus completion that a model has no positions for.

    Raises:
        BadConfigError: it has fewer; has the numbers.
    """
    wanted = config.max_prompt_length + config.max_completion_length
    if wanted > max_positions:
        raise BadConfigError(
            f"{config.stage}.max_prompt_length {config.max_prompt_length} + max_completion_length "
            f"{config.max_completion_length} = {wanted} tokens; the {name} has {max_positions} positions. "
            f"Lower one of the two."
        )


def shuffled_passes(num_items: int, *, length: int, seed: int) -> list[int]:
    """`length` indices below `num_items`: one seeded shuffle after the other, cut at the end.

    Each item comes once before any comes twice.

    Example: 3 items and length 5 may give [2, 0, 1, 0, 2].
    """
    rng = random.Random(seed)  # noqa: S311  (an order, not a secret)
    indices: list[int] = []
    while len(indices) < length:
        indices += rng.sample(range(num_items), num_items)
    return indices[:length]


def seeded_subset(prompts: Sequence[PolicyPrompt], *, limit: int | None, seed: int) -> tuple[PolicyPrompt, ...]:
    """At most `limit` prompts, drawn by the seed and kept in their order; all of them where the limit is None."""
    if limit is None or limit >= len(prompts):
        return tuple(prompts)
    rng = random.Random(seed)  # noqa: S311  (a sample, not a secret)
    return tuple(prompts[index] for index in sorted(rng.sample(range(len(prompts)), limit)))


def _message(message: dict[str, Any]) -> dict[str, str]:
    return {"role": str(message["role"]), "content": str(message["content"])}
