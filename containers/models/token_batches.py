"""Tokenise many conversations together, so that the tokenizer uses every core."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from containers.models.chat_template import thinking
from containers.models.template_losses import TemplateLosses, require_no_refusal

# Larger batches are no faster, and the tokenizer's data about each token takes memory until the batch is done.
_AT_ONCE = 512


def tokens_of_all(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Sequence[Mapping[str, str]]],
    *,
    add_generation_prompt: bool = False,
    thinks: bool | None = None,
    losses: TemplateLosses | None = None,
) -> list[list[int]]:
    """Return the tokens of each conversation in the tokenizer's chat template, in order.

    Args:
        add_generation_prompt: end with the text after which the assistant begins.
        thinks: whether the assistant may write a thought before its answer, as rollouts set it; None: as the template
            has it.
        losses: counts what the template leaves out.

    Raises:
        BadConfigError: the template refuses some conversations; says how many of all, and why.
    """
    settings = {"add_generation_prompt": add_generation_prompt, **({} if thinks is None else thinking(thinks))}
    found: list[list[int]] = []
    for begin in range(0, len(conversations), _AT_ONCE):
        batch = [[dict(turn) for turn in conversation] for conversation in conversations[begin : begin + _AT_ONCE]]
        try:
            texts: list[str] = tokenizer.apply_chat_template(batch, tokenize=False, **settings)
        except Exception:
            require_no_refusal(tokenizer, conversations, settings=settings)
            raise
        if losses is not None:
            for conversation, text in zip(batch, texts, strict=True):
                losses.look_at(conversation, text)
        # No special tokens, as in apply_chat_template: the template has written them.
        encoded: Mapping[str, list[list[int]]] = tokenizer(texts, add_special_tokens=False)
        found += [list(ids) for ids in encoded["input_ids"]]
    return found


def prompt_token_ids(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[Mapping[str, str]]],
    *,
    thinks: bool = False,
    losses: TemplateLosses | None = None,
) -> list[list[int]]:
    """Return the tokens of prompts as rollouts write them, up to where the assistant begins; see `tokens_of_all`."""
    return tokens_of_all(tokenizer, prompts, add_generation_prompt=True, thinks=thinks, losses=losses)
