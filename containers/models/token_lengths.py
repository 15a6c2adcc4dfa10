"""Counts the tokens of a prompt with its answer, as the base model's chat template writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from containers.data.formats.schemas import Turn
from containers.harness.errors import BadConfigError, BadDataError
from containers.models.chat_template import check_chat_template
from containers.models.template_losses import refusals_in_words, refusals_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TokenCounter:
    """Lengths of conversations in tokens; remembers those that the template refuses."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._num_seen = 0
        self._refused: list[tuple[Sequence[Turn], str]] = []

    def lengths(self, conversations: Sequence[Sequence[Turn]]) -> list[int]:
        """The tokens of each conversation; 0 where the template refuses it."""
        texts: dict[int, str] = {}
        refusals: dict[int, str] = {}
        if self._tokenizer.chat_template:
            refusals = refusals_of(self._tokenizer, conversations, texts=texts)
        else:
            texts = {place: "\n".join(turn["content"] for turn in turns) for place, turns in enumerate(conversations)}
        self._num_seen += len(conversations)
        self._refused += [(conversations[place], reason) for place, reason in refusals.items()]
        tokens = self._tokenizer(list(texts.values()), add_special_tokens=False)["input_ids"] if texts else []
        counts = dict(zip(texts, map(len, tokens), strict=True))
        return [counts.get(place, 0) for place in range(len(conversations))]

    def demand_no_refusal(self) -> None:
        """Say of all conversations so far which have no length.

        Raises:
            BadDataError: the template refused one.
        """
        if self._refused:
            raise BadDataError(
                f"filter_dataset.max_tokens counts by the chat template of the base model. "
                f"{refusals_in_words(self._refused, num_seen=self._num_seen)} Leave such rows out, set max_characters "
                f"instead, or use a base model with another template."
            )


def load_token_counter(path: Path, *, origin: str) -> TokenCounter:
    """A counter that writes conversations as the tokenizer at `path` does.

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
    return TokenCounter(tokenizer)
