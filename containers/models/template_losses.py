"""Conversations that a chat template refuses, or of which it leaves out a part.

Gemma refuses system prompts and roles that do not alternate. Mistral leaves a system prompt out of a conversation that
ends with an answer, so no reward model would ever see one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from containers.formatting import one_line
from containers.harness.errors import BadConfigError

Conversation: TypeAlias = Sequence[Mapping[str, str]]

_SHOWN_CHARACTERS = 80
_WAY_OUT = (
    "Set train_sft.chat_template (it stays with the model), or train_reward_model.chat_template if there is no "
    "train_sft, to a template that writes every turn, by name (chatml, say) or as a .jinja file; a policy without "
    "train_sft keeps its model's own template. Or leave such rows out of the data."
)


def refusals_of(
    tokenizer: Any,
    conversations: Iterable[Conversation],
    *,
    settings: Mapping[str, Any] | None = None,
    losses: "TemplateLosses | None" = None,
    texts: dict[int, str] | None = None,
) -> dict[int, str]:
    """Return why the template refuses conversations, by their place; empty if it refuses none.

    Args:
        settings: further arguments of `apply_chat_template`.
        losses: counts what the template leaves out of the others.
        texts: receives the template's text of the others, by their place.
    """
    found = {}
    for place, conversation in enumerate(conversations):
        turns = [dict(turn) for turn in conversation]
        try:
            text = str(tokenizer.apply_chat_template(turns, tokenize=False, **(settings or {})))
        except Exception as error:  # a template is a program, and may raise anything
            found[place] = one_line(str(error), _SHOWN_CHARACTERS) or type(error).__name__
        else:
            if losses is not None:
                losses.look_at(conversation, text)
            if texts is not None:
                texts[place] = text
    return found


def require_no_refusal(
    tokenizer: Any, conversations: Sequence[Conversation], *, settings: Mapping[str, Any] | None = None
) -> None:
    """Raise if the template refuses a conversation.

    Raises:
        BadConfigError: it refuses one; says how many, why, and what to do.
    """
    refusals = refusals_of(tokenizer, conversations, settings=settings)
    if refusals:
        refused = [(conversations[place], reason) for place, reason in refusals.items()]
        raise BadConfigError(f"{refusals_text(refused, num_seen=len(conversations))} {_WAY_OUT}")


def refusals_text(refused: Sequence[tuple[Conversation, str]], *, num_seen: int) -> str:
    """Return a text: how many conversations were refused; for each reason, how many and the turns of the first."""
    first = {reason: conversation for conversation, reason in reversed(refused)}
    reasons = "; ".join(
        f"`{reason}` ({count:,}; the first has the turns {', '.join(turn['role'] for turn in first[reason])})"
        for reason, count in Counter(reason for _, reason in refused).most_common()
    )
    return (
        f"The chat template refuses {len(refused):,} of {num_seen:,} conversations, so they have no tokens: {reasons}."
    )


class TemplateLosses:
    """Counts the conversations of which a template leaves out a turn, or writes the turns in another order.

    A turn counts as written if its text is, without white space around it.
    """

    def __init__(self) -> None:
        self._num_seen = 0
        self._without: Counter[str] = Counter()
        self._num_moved = 0
        self._first: dict[str, str] = {}

    @classmethod
    def together(cls, parts: "Sequence[TemplateLosses]") -> "TemplateLosses":
        """Add up several counts of different conversations; the first turn lost of each role is the first part's."""
        whole = cls()
        for part in parts:
            whole._num_seen += part._num_seen
            whole._without += part._without
            whole._num_moved += part._num_moved
            whole._first = {**part._first, **whole._first}
        return whole

    def look_at(self, conversation: Conversation, text: str) -> None:
        """Count a conversation by the text that the template made of it."""
        self._num_seen += 1
        lost: dict[str, str] = {}
        is_moved, end = False, 0
        for turn in conversation:
            content = turn["content"].strip()
            place = text.find(content, end)
            if place >= 0:
                end = place + len(content)
            elif content in text:
                is_moved = True
            else:
                lost.setdefault(turn["role"], content)
        self._without.update(lost.keys())
        self._num_moved += is_moved
        for role, content in lost.items():
            self._first.setdefault(role, content)

    def text(self) -> str:
        """Return a warning for people, with numbers and what to do; empty if nothing is lost."""
        found = [
            f"leaves out the turn of the role {role} in {count:,} of {self._num_seen:,} conversations (the first: "
            f"`{one_line(self._first[role], _SHOWN_CHARACTERS)}`)"
            for role, count in self._without.most_common()
        ]
        if self._num_moved:
            found.append(
                f"writes the turns of {self._num_moved:,} of {self._num_seen:,} conversations in another order"
            )
        if not found:
            return ""
        return f"Warning: The chat template {', and '.join(found)}. The model never sees them as they are. {_WAY_OUT}"
