"""Counts the tokens of a prompt with its answer, as the base model's chat template writes them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from containers.stages.chat_template import check_chat_template
from containers.stages.errors import BadConfigError, BadDataError
from containers.stages.pair_schemas import Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TokenCounter = Callable[[Sequence[Sequence[Turn]]], list[int]]


def load_token_counter(path: Path, *, origin: str) -> TokenCounter:
    """A function from conversations to their lengths in tokens.

    Raises:
        BadConfigError: there is no tokenizer at `path`, or its chat template does not pass `check_chat_template`.
    """
    # Imported late: transformers takes seconds, and only max_tokens needs it.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise BadConfigError(
            f"filter_dataset.max_tokens needs the tokenizer of the base model, and {origin} holds none that loads "
            f"({error}). Leave max_tokens out, or name a base_model with a tokenizer."
        ) from error
    if tokenizer.chat_template:
        check_chat_template(tokenizer, folder=path, origin=origin)

    def count(conversations: Sequence[Sequence[Turn]]) -> list[int]:
        texts = [_rendered(tokenizer, turns) for turns in conversations]
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]

    return count


def _rendered(tokenizer: "PreTrainedTokenizerBase", turns: Sequence[Turn]) -> str:
    if not tokenizer.chat_template:
        return "\n".join(turn["content"] for turn in turns)
    from jinja2.exceptions import TemplateError

    try:
        return str(tokenizer.apply_chat_template(list(turns), tokenize=False))
    except TemplateError as error:
        raise BadDataError(
            f"The chat template of the base model refuses a conversation with the roles "
            f"{', '.join(turn['role'] for turn in turns)}: {error}. Use another chat template, or leave such rows out."
        ) from error
