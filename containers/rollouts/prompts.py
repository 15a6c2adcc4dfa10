"""The policy's prompts: read, tokenise, filter by length, order, and lay out as rows of a batch."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import torch
from torch import Tensor

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.sample_completions import SampleCompletionsConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import POLICY_EVAL_PROMPTS_FILE, POLICY_TRAIN_PROMPTS_FILE
from containers.harness.errors import BadConfigError, BadDataError, MissingPrerequisiteError
from containers.models.token_batches import prompt_token_ids
from containers.models.tokenizer_loading import token_without_row, without_row_text

# One prompt gives an interval of width zero, which a gate would take for certainty.
_MIN_EVAL_PROMPTS = 2


@dataclass(frozen=True)
class PolicyPrompt:
    """One prompt of the policy: its conversation, and its token ids up to where the assistant begins.

    Attributes:
        answer: the reference answer; None if it has none.
        other_answers: further answers that are right too.
        columns: further columns of its row.
    """

    prompt_id: str
    domain: str
    conversation: tuple[dict[str, str], ...]
    token_ids: tuple[int, ...]
    answer: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    other_answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicyPrompts:
    """The usable prompts of the policy, and the numbers of those left out.

    Attributes:
        num_over_long: prompts longer than max_prompt_length.
        num_without_row: of the others, those with a token that has no row in the policy or its reward model.
        left_out_text: empty if none is left out.
    """

    prompts: tuple[PolicyPrompt, ...]
    num_over_long: int
    num_without_row: int
    left_out_text: str

    def without(self, tokens: Sequence[str], *, num_rows: int, of: str) -> "PolicyPrompts":
        """Return the prompts that spell no token without an embedding row.

        Args:
            tokens: that token of each prompt, or "".
            num_rows: rows of the embedding.
            of: the model that has the embedding.

        Raises:
            BadDataError: too many prompts spell one.
        """
        if not any(tokens):
            return self
        kept = tuple(prompt for prompt, token in zip(self.prompts, tokens, strict=True) if not token)
        words = without_row_text(tokens, name="prompts", num_rows=num_rows, of=of)
        return PolicyPrompts(
            prompts=kept,
            num_over_long=self.num_over_long,
            num_without_row=self.num_without_row + len(self.prompts) - len(kept),
            left_out_text=f"{self.left_out_text} {words}".lstrip(),
        )


def read_training_prompts(folder: Path, tokenizer: Any, config: TrainPolicyConfig, *, num_rows: int) -> PolicyPrompts:
    """Read the policy's training prompts that fit, in file order.

    Args:
        folder: artifact of filter_dataset or filter_prompts.
        num_rows: rows of the policy's embedding.

    Raises:
        MissingPrerequisiteError: the file is missing, damaged, or lacks a column.
        BadDataError: the file holds no prompt, or none that fits; or too many have a token without a row.
    """
    return _that_fit(
        folder / POLICY_TRAIN_PROMPTS_FILE,
        tokenizer,
        num_rows=num_rows,
        thinks=config.enable_thinking,
        max_length=config.max_prompt_length,
        setting="train_policy.max_prompt_length",
        minimum=1,
        purpose="train the policy on",
    )


def read_evaluation_prompts(
    folder: Path, tokenizer: Any, config: TrainPolicyConfig | SampleCompletionsConfig, *, num_rows: int
) -> PolicyPrompts:
    """Read the held-out prompts that fit and that evaluate the policy, in file order.

    train_policy reads them too, so as not to train a policy that cannot be evaluated. It uses evaluate_policy's maximum
    length if it has one, else its own, which is never longer.

    Args:
        folder: artifact of filter_dataset or filter_prompts.
        num_rows: rows of the policy's embedding.

    Raises:
        MissingPrerequisiteError: the file is missing, damaged, or lacks a column.
        BadDataError: fewer than two prompts fit; or too many have a token without a row.
    """
    max_length, setting = config.max_prompt_length, "evaluate_policy.max_prompt_length"
    if isinstance(config, TrainPolicyConfig):
        if config.evaluation_prompt_length is None:
            setting = "train_policy.max_prompt_length"
        else:
            max_length = config.evaluation_prompt_length
    return _that_fit(
        folder / POLICY_EVAL_PROMPTS_FILE,
        tokenizer,
        num_rows=num_rows,
        thinks=config.enable_thinking,
        max_length=max_length,
        setting=setting,
        minimum=_MIN_EVAL_PROMPTS,
        purpose="judge the policy on",
    )


def _that_fit(
    path: Path,
    tokenizer: Any,
    *,
    num_rows: int,
    thinks: bool,
    max_length: int,
    setting: str,
    minimum: int,
    purpose: str,
) -> PolicyPrompts:
    rows = read_prompt_rows(path)
    if not rows:
        raise BadDataError(
            f"{path.name} has no prompt to {purpose}. Raise filter_dataset.policy_prompt_fraction or "
            f"policy_eval_prompt_fraction; of a prompt set, filter_prompts.evaluation_fraction."
        )
    conversations = [
        [{name: str(message[name]) for name in ("role", "content")} for message in row["prompt"]] for row in rows
    ]
    encoded = prompt_token_ids(tokenizer, conversations, thinks=thinks)
    short = [
        PolicyPrompt(
            prompt_id=row["prompt_id"],
            domain=row["domain"] or "",
            conversation=tuple(turns),
            token_ids=tuple(ids),
            answer=row.get("answer"),
            columns=json.loads(row.get("columns") or "{}"),
            other_answers=tuple(row.get("other_answers") or ()),
        )
        for row, turns, ids in zip(rows, conversations, encoded, strict=True)
        if len(ids) <= max_length
    ]
    num_over_long = len(rows) - len(short)
    words = f"{num_over_long:,} of {len(rows):,} prompts are left out: longer than {max_length} tokens ({setting})."
    found = PolicyPrompts(
        prompts=tuple(short),
        num_over_long=num_over_long,
        num_without_row=0,
        left_out_text=words if num_over_long else "",
    )
    tokens = [token_without_row(tokenizer, prompt.token_ids, num_rows=num_rows) for prompt in short]
    found = found.without(tokens, num_rows=num_rows, of="the policy")
    if len(found.prompts) < minimum:
        lengths = [len(ids) for ids in encoded]
        raise BadDataError(
            f"{path.name} has {len(rows):,} prompts to {purpose}, of which {len(found.prompts)} fit in {setting} "
            f"{max_length}; at least {minimum} must. The shortest has {min(lengths):,} tokens, the "
            f"longest {max(lengths):,}. Raise {setting}, or set more prompts aside "
            f"(filter_dataset.policy_prompt_fraction, policy_eval_prompt_fraction)."
        )
    return found


def read_prompt_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of prompts: `prompt`, `domain`, `prompt_id`, and of a prompt set
    `answer`, `other_answers`, `columns`.

    Raises:
        MissingPrerequisiteError: the file is missing, damaged, or lacks a column.
    """
    try:
        table = parquet.read_table(path)
        table.select(["prompt", "domain", "prompt_id"])  # each must be there
        rows: list[dict[str, Any]] = table.to_pylist()
    except Exception as error:
        raise MissingPrerequisiteError(f"{path} is no readable parquet file of prompts: {error}") from error
    return rows


def check_lengths(
    config: TrainPolicyConfig | SampleCompletionsConfig | EvaluatePolicyConfig, *, max_positions: int, name: str
) -> None:
    """Refuse a longest prompt plus completion that is longer than the model's positions.

    Raises:
        BadConfigError: the model has fewer positions; names the numbers.
    """
    section = "train_policy" if isinstance(config, TrainPolicyConfig) else "evaluate_policy"
    wanted = config.max_prompt_length + config.max_completion_length
    if wanted > max_positions:
        raise BadConfigError(
            f"{section}.max_prompt_length {config.max_prompt_length} + max_completion_length "
            f"{config.max_completion_length} = {wanted} tokens; the {name} has {max_positions} positions. "
            f"Lower one of the two."
        )


class PromptOrder:
    """An endless order of prompts: seeded shuffles one after the other, so each comes once before any comes twice.

    Example: 3 prompts may give 2, 0, 1, 0, 2, 1, …
    """

    def __init__(self, num_prompts: int, *, seed: int) -> None:
        self._num_prompts = num_prompts
        self._rng = random.Random(seed)  # noqa: S311  (an order, not a secret)
        self._places: list[int] = []

    def __getitem__(self, position: int) -> int:
        while len(self._places) <= position:
            self._places += self._rng.sample(range(self._num_prompts), self._num_prompts)
        return self._places[position]


def seeded_subset(prompts: Sequence[PolicyPrompt], *, limit: int | None, seed: int) -> tuple[PolicyPrompt, ...]:
    """Return at most `limit` prompts, drawn by the seed, in their original order; all if the limit is None."""
    if limit is None or limit >= len(prompts):
        return tuple(prompts)
    rng = random.Random(seed)  # noqa: S311  (a sample, not a secret)
    return tuple(prompts[index] for index in sorted(rng.sample(range(len(prompts)), limit)))


def equal_rows(input_ids: Tensor, attention_mask: Tensor) -> list[range]:
    """Return the ranges of adjacent rows with the same prompt, in order."""
    changes = (input_ids[1:] != input_ids[:-1]).any(dim=1) | (attention_mask[1:] != attention_mask[:-1]).any(dim=1)
    borders = [0, *(changes.nonzero().flatten() + 1).tolist(), len(input_ids)]
    return [range(start, end) for start, end in pairwise(borders)]


def prompts_of(runs: Sequence[range], input_ids: Tensor, attention_mask: Tensor, *, siblings: int) -> list[list[int]]:
    """Return the token ids of each run's prompt without padding, once per `siblings` rows."""
    return [input_ids[row][attention_mask[row].bool()].tolist() for run in runs for row in run[::siblings]]


def with_completions(input_ids: Tensor, completions: Sequence[Sequence[int]], *, pad_id: int) -> Tensor:
    """Return [B, L + C]: each row with its completion, padded at the end."""
    tails = torch.full((len(input_ids), max(map(len, completions))), pad_id, device=input_ids.device)
    for row, tokens in enumerate(completions):
        tails[row, : len(tokens)] = torch.tensor(tokens, device=input_ids.device)
    return torch.cat([input_ids, tails], dim=1)
