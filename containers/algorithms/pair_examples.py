"""Tokens of pairs, and the examples that an offline step computes."""

from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from containers.algorithms.offline_step import Example
from containers.data.pairs import Row
from containers.harness.errors import BadDataError
from containers.models.template_losses import TemplateLosses
from containers.training.completion_tokens import tokenised_completions

# The fields of a tokenised pair that hold a conversation.
PAIR_FIELDS = ("chosen_ids", "rejected_ids")


def tokenised_pairs(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], *, losses: TemplateLosses
) -> list[list[Row]]:
    """Return the tokens of both conversations of each pair, and of how many their prompt is; one item a pair.

    Raises:
        BadConfigError: as `tokenised_completions`.
    """
    found = iter(
        tokenised_completions(
            tokenizer,
            [(row["prompt"], row[side]) for row in rows for side in ("chosen", "rejected")],
            setting="train_dpo.chat_template",
            losses=losses,
        )
    )
    made = []
    for _ in rows:
        chosen, rejected = next(found), next(found)
        start = chosen["completion_mask"].count(0)
        pair = {"chosen_ids": chosen["input_ids"], "rejected_ids": rejected["input_ids"], "prompt_tokens": [start]}
        made.append([pair])
    return made


def examples_of_pairs(rows: Sequence[Row], *, mismatched: bool, max_length: int) -> list[Example]:
    """Return an example for each tokenised pair.

    Args:
        mismatched: give each the completions of another one, as kto needs them; see `with_mismatched`.
    """
    made = []
    for row in rows:
        (start,) = row["prompt_tokens"]
        made.append(Example(row["chosen_ids"][:start], (row["chosen_ids"][start:], row["rejected_ids"][start:])))
    return with_mismatched(made, max_length=max_length) if mismatched else made


def with_mismatched(examples: Sequence[Example], *, max_length: int) -> list[Example]:
    """Return the examples, each with the completions of the next example that has another prompt.

    KTO estimates its KL by them, since they come from no policy that saw the prompt. The paper takes them from the same
    batch; the next example of the data does not depend on how batches are cut, and its reference is known before.

    Args:
        max_length: a longer conversation is cut at its end.

    Raises:
        BadDataError: all prompts are the same.
    """
    count = len(examples)
    made = []
    for place, example in enumerate(examples):
        others = (examples[(place + step) % count] for step in range(1, count))
        other = next((other for other in others if other.prompt != example.prompt), None)
        if other is None:
            raise BadDataError(
                "All pairs have the same prompt, and kto compares completions to their own prompt with completions to "
                "other ones. Use another train_dpo.loss, or data with several prompts."
            )
        room = max(max_length - len(example.prompt), 1)
        made.append(replace(example, mismatched=tuple(ids[:room] for ids in other.completions)))
    return made
