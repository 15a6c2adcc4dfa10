"""Prompts with their completions as tokens for fine-tuning: what generation would see, then what it must write."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from containers.data.pairs import Row
from containers.formatting import one_line
from containers.harness.errors import BadConfigError
from containers.models.chat_template import ANSWER_AT_ONCE
from containers.models.template_losses import TemplateLosses
from containers.models.token_batches import tokens_of_all

Turns = list[dict[str, str]]


def tokenised_completions(
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[Turns, Turns]],
    *,
    losses: TemplateLosses | None = None,
) -> list[Row]:
    """Of each prompt with its completion `input_ids`, and `completion_mask`, 1 on the tokens for the policy to write.

    The tokens begin with those that rollouts and evaluate_policy generate from, for Qwen3 with the empty thought before
    the answer. The mask is 1 on all that follow: the completion and the end of its turn.

    Where a token of the whole conversation lies on both sides of that place, prompt and completion are tokenised apart,
    as generation would have it: of "assistant\\n" and "\\nYes." the two line breaks would be one token, which no prompt
    ends with. Elsewhere the tokens are those of the whole.

    Args:
        losses: counts what the chat template leaves out of prompt and completion.

    Raises:
        BadConfigError: the chat template refuses a conversation, or writes a prompt differently when its completion
            follows; says of how many.
    """
    starts = tokens_of_all(tokenizer, [prompt for prompt, _ in pairs], add_generation_prompt=True, for_the_policy=True)
    wholes = tokens_of_all(
        tokenizer, [[*prompt, *completion] for prompt, completion in pairs], for_the_policy=True, losses=losses
    )
    rewritten = []
    for place, (start, whole) in enumerate(zip(starts, wholes, strict=True)):
        if whole[: len(start)] != start:
            rest = _rest(tokenizer, *pairs[place], start_ids=start)
            if rest is None:
                rewritten.append(place)
            else:
                wholes[place] = start + rest
    if rewritten:
        raise BadConfigError(_refusal([pairs[place] for place in rewritten], num_pairs=len(pairs)))
    return [
        {"input_ids": whole, "completion_mask": [0] * len(start) + [1] * (len(whole) - len(start))}
        for start, whole in zip(starts, wholes, strict=True)
    ]


def _rest(
    tokenizer: PreTrainedTokenizerBase, prompt: Turns, completion: Turns, *, start_ids: Sequence[int]
) -> list[int] | None:
    """The tokens of what the template writes behind the prompt; None where it writes another prompt.

    Also None where they are another text: some tokenizers (Llama 2's) put a blank before whatever they are given.
    """
    start = str(tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **ANSWER_AT_ONCE))
    whole = str(tokenizer.apply_chat_template([*prompt, *completion], tokenize=False, **ANSWER_AT_ONCE))
    if not whole.startswith(start):
        return None
    rest = whole.removeprefix(start)
    encoded: Mapping[str, list[int]] = tokenizer(rest, add_special_tokens=False)
    ids = list(encoded["input_ids"])
    return ids if _written(tokenizer, [*start_ids, *ids]) == _written(tokenizer, start_ids) + rest else None


def _written(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _refusal(rewritten: Sequence[tuple[Turns, Turns]], *, num_pairs: int) -> str:
    prompt, completion = rewritten[0]
    roles = ", ".join(turn["role"] for turn in [*prompt, *completion])
    return (
        f"The chat template writes the prompt of {len(rewritten):,} of {num_pairs:,} completions differently when the "
        "completion follows, so the model would learn to go on from what generation never shows it. The first has the "
        f"turns {roles} and answers `{one_line(completion[-1]['content'], 80)}`. Templates do so that move a system "
        "prompt or leave it out (Mistral), and with answers that hold a thought (`</think>`). Set "
        "train_sft.chat_template to another one, by name (chatml, say) or as a .jinja file, or leave such rows out of "
        "the data."
    )
