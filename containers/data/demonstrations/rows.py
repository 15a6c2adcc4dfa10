"""The row of a set of demonstrations."""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from containers.data.rows import MalformedRowError, Turn, Value, names_of, prompt_identity, read_prompt, read_response

# What a turn may hold beside its content that is not read: without it the turn would say something else.
_NOT_READ = ("tool_calls", "reasoning_content")


class DemonstrationRow(NamedTuple):
    """A conversation that ends with an answer.

    Attributes:
        prompt: all turns before the last answer; earlier answers are among them.
        answer: the last turn.
        row_id: digest of all turns.
    """

    prompt: tuple[Turn, ...]
    answer: str
    domain: str
    language: str
    prompt_id: str
    row_id: str

    @property
    def completions(self) -> tuple[str, ...]:
        """The last answer."""
        return (self.answer,)

    def in_language(self, language: str) -> "DemonstrationRow":
        """Return the row with another language."""
        return self._replace(language=language)


def make_demonstration(value: Value, turns: object) -> DemonstrationRow:
    """Return the row of a conversation; a turn of the user at its end, which has no answer, is left out.

    Args:
        value: the object that it was read from, with domain and language.
        turns: a list of `{role, content}`.

    Raises:
        MalformedRowError: the turns cannot be used, none of them is an answer, or one calls a tool; names why.
    """
    if not isinstance(turns, list | tuple):
        raise MalformedRowError("conversation_not_turns", repr(turns)[:80])
    given: list[Any] = list(turns)
    for turn in given:
        unread = [name for name in _NOT_READ if isinstance(turn, Mapping) and turn.get(name)]
        if unread:
            raise MalformedRowError(f"{unread[0]}_not_read", repr(turn[unread[0]])[:80])
    if given and _role(given[-1]) == "user":
        given.pop()
    if len(given) < 2 or _role(given[-1]) != "assistant":
        raise MalformedRowError("no_answer", " ".join(str(_role(turn)) for turn in given)[:80])
    prompt, answer = read_prompt(given[:-1]), read_response(given[-1].get("content"))
    prompt_id, (domain, language) = prompt_identity(prompt), names_of(value)
    digest = hashlib.sha256(f"{prompt_id}\0{answer}".encode()).hexdigest()
    return DemonstrationRow(prompt, answer, domain, language, prompt_id, digest[: len(prompt_id)])


def _role(turn: object) -> object:
    return turn.get("role") if isinstance(turn, Mapping) else turn
