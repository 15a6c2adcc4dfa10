"""Tokens of prompts with their completions, as the policy sees and writes them."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from containers.data.pairs import Row
from containers.formatting import one_line
from containers.harness.errors import BadConfigError
from containers.models.chat_template import thinking
from containers.models.template_losses import TemplateLosses
from containers.models.token_batches import prompt_token_ids, tokens_of_all

Turns = list[dict[str, str]]


def tokenised_completions(
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[Turns, Turns]],
    *,
    setting: str = "train_sft.chat_template",
    losses: TemplateLosses | None = None,
) -> list[Row]:
    """Return `input_ids` and `completion_mask` of each prompt with its completion; mask 1: the policy writes the token.

    The tokens begin with those that rollouts and evaluate_policy generate from; for Qwen3 with the empty thought before
    the answer. The mask is 1 on all that follow: the completion and the end of its turn.

    If a token of the whole conversation spans the end of the prompt, prompt and completion are tokenised separately, as
    in generation. Example: the two line breaks of "assistant\\n" and "\\nYes." would be one token, with which no prompt
    ends. Otherwise the whole conversation is tokenised at once.

    Args:
        setting: the key of the chat template, for the message.
        losses: counts what the chat template leaves out of prompt and completion.

    Raises:
        BadConfigError: the chat template refuses a conversation, or writes a prompt differently when its completion
            follows; says for how many.
    """
    starts = prompt_token_ids(tokenizer, [prompt for prompt, _ in pairs])
    wholes = tokens_of_all(
        tokenizer, [[*prompt, *completion] for prompt, completion in pairs], thinks=False, losses=losses
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
        raise BadConfigError(_refusal([pairs[place] for place in rewritten], num_pairs=len(pairs), setting=setting))
    return [
        {"input_ids": whole, "completion_mask": [0] * len(start) + [1] * (len(whole) - len(start))}
        for start, whole in zip(starts, wholes, strict=True)
    ]


def tokenised_conversations(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Turns],
    *,
    max_length: int,
    setting: str = "train_sft.chat_template",
    losses: TemplateLosses | None = None,
) -> list[list[Row]]:
    """Return the examples of each conversation, with fields as of `tokenised_completions`; each answer is in one.

    An answer with all before it is tokenised as if it were the last turn, since so it is generated. It joins the
    example of the next answer if that begins with the same tokens. It does not with templates that write an earlier
    answer differently (Qwen3 leaves out earlier thoughts). An answer that ends behind `max_length` joins none, so that
    the answers before it are not left out with it.

    Args:
        conversations: each ends with an answer.
        max_length: the largest number of tokens that an example may have to be used.

    Raises:
        BadConfigError: as `tokenised_completions`.
    """
    ends = [[place for place, turn in enumerate(turns) if turn["role"] == "assistant"] for turns in conversations]
    pairs = [(turns[:end], turns[end : end + 1]) for turns, own in zip(conversations, ends, strict=True) for end in own]
    found = iter(tokenised_completions(tokenizer, pairs, setting=setting, losses=losses))
    return [_joined([next(found) for _ in own], max_length=max_length) for own in ends]


def _joined(examples: Sequence[Row], *, max_length: int) -> list[Row]:
    """Return the examples of a conversation's answers, those that begin the next one as a part of it."""
    made: list[Row] = []
    for example in reversed(examples):
        later = made[-1]["input_ids"] if made else []
        length = len(example["input_ids"])
        if later[:length] == example["input_ids"] and len(later) <= max_length:
            of_later = made[-1]["completion_mask"]
            of_later[:length] = [one | own for one, own in zip(of_later, example["completion_mask"], strict=False)]
        else:
            made.append(example)
    return made[::-1]


def _rest(
    tokenizer: PreTrainedTokenizerBase, prompt: Turns, completion: Turns, *, start_ids: Sequence[int]
) -> list[int] | None:
    """Return the tokens of what the template writes after the prompt; None if it then writes another prompt.

    Also None if the tokens decode to another text: some tokenizers (Llama 2's) put a space before each text.
    """
    start = str(tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **thinking(False)))
    whole = str(tokenizer.apply_chat_template([*prompt, *completion], tokenize=False, **thinking(False)))
    if not whole.startswith(start):
        return None
    rest = whole.removeprefix(start)
    encoded: Mapping[str, list[int]] = tokenizer(rest, add_special_tokens=False)
    ids = list(encoded["input_ids"])
    return ids if _written(tokenizer, [*start_ids, *ids]) == _written(tokenizer, start_ids) + rest else None


def _written(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _refusal(rewritten: Sequence[tuple[Turns, Turns]], *, num_pairs: int, setting: str) -> str:
    prompt, completion = rewritten[0]
    roles = ", ".join(turn["role"] for turn in [*prompt, *completion])
    return (
        f"The chat template writes the prompt of {len(rewritten):,} of {num_pairs:,} completions differently when the "
        "completion follows, so the model would learn from prompts that generation never uses. The first has the "
        f"turns {roles} and answers `{one_line(completion[-1]['content'], 80)}`. The usual causes are a template that "
        f"moves or drops a system prompt (Mistral), and answers that hold a thought (`</think>`). Set {setting} to "
        "another one, by name (chatml, say) or as a .jinja file, or leave such rows out of the data."
    )
