"""Tokens of many conversations: together, so that the tokenizer works on every core."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from containers.stages.rollouts import ANSWER_AT_ONCE

# More at once are no faster, and what the tokenizer notes about each token takes memory until they are done.
_AT_ONCE = 512


def tokens_of_all(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Sequence[Mapping[str, str]]],
    *,
    add_generation_prompt: bool = False,
    for_the_policy: bool = False,
) -> list[list[int]]:
    """The tokens of each conversation in the tokenizer's chat template, in order.

    Args:
        add_generation_prompt: end with the words after which the assistant begins.
        for_the_policy: as rollouts write prompts, with `ANSWER_AT_ONCE`.
    """
    settings = ANSWER_AT_ONCE if for_the_policy else {}
    found: list[list[int]] = []
    for begin in range(0, len(conversations), _AT_ONCE):
        batch = [[dict(turn) for turn in conversation] for conversation in conversations[begin : begin + _AT_ONCE]]
        encoded: Mapping[str, list[list[int]]] = tokenizer.apply_chat_template(
            batch, tokenize=True, return_dict=True, add_generation_prompt=add_generation_prompt, **settings
        )
        found += [list(ids) for ids in encoded["input_ids"]]
    return found
