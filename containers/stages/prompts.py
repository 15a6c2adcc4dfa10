"""The prompts set aside for the policy: read, measured in tokens, and put into a repeatable order."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from containers.contracts.stage_configs import EvaluatePolicyConfig, TrainPolicyConfig
from containers.stages.errors import BadConfigError, BadDataError, MissingPrerequisiteError
from containers.stages.rollouts import prompt_token_ids


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


def read_policy_prompts(path: Path, tokenizer: Any, *, max_prompt_length: int) -> PolicyPrompts:
    """The prompts of a filter_dataset artifact that fit, in file order.

    Args:
        max_prompt_length: tokens of the prompt in the chat template; longer ones are counted out.

    Raises:
        MissingPrerequisiteError: the file is missing, damaged, or lacks a column.
        BadDataError: it holds no prompt, or none that fits.
    """
    try:
        rows = parquet.read_table(path, columns=["prompt", "domain", "prompt_id"]).to_pylist()
    except Exception as error:
        raise MissingPrerequisiteError(f"{path} is no readable parquet file of prompts: {error}") from error
    if not rows:
        raise BadDataError(
            f"{path.name} has no prompt. Raise policy_prompt_fraction or policy_eval_prompt_fraction of filter_dataset."
        )
    conversations = [[_message(message) for message in row["prompt"]] for row in rows]
    encoded = prompt_token_ids(tokenizer, conversations)
    prompts = tuple(
        PolicyPrompt(
            prompt_id=row["prompt_id"], domain=row["domain"] or "", conversation=tuple(turns), token_ids=tuple(ids)
        )
        for row, turns, ids in zip(rows, conversations, encoded, strict=True)
        if len(ids) <= max_prompt_length
    )
    if not prompts:
        raise BadDataError(
            f"{path.name} has {len(rows)} prompts, of which none fits: max_prompt_length is {max_prompt_length} "
            f"tokens, the shortest prompt has {min(len(ids) for ids in encoded)}."
        )
    return PolicyPrompts(prompts=prompts, left_out=len(rows) - len(prompts))


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
