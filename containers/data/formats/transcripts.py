r"""Conversations written as one text: read into turns, and written for NeMo-Aligner. Pure.

HH-RLHF          "\n\nHuman: Name a colour.\n\nAssistant: Red."
NeMo-Aligner     "User: Name a colour.\n\nAssistant: Red."      its HH script; its manual has one line break
NeMo templates   "<extra_id_0>System\n\n<extra_id_1>User\nName a colour.\n<extra_id_1>Assistant\nRed."
"""

import re
from collections.abc import Sequence

from containers.data.rows import Turn

_ROLES = {"Human": "user", "User": "user", "Assistant": "assistant", "System": "system"}

# How a text of each form begins, and what separates its turns; the first form that fits counts.
_TEMPLATE = (re.compile(r"<extra_id_[01]>"), re.compile(r"\n?<extra_id_[01]>(System|User|Assistant)\n"))
_DIALOGUES = tuple(
    (
        re.compile(rf"\s*{person}:.*?{gap}Assistant:", re.DOTALL),
        re.compile(rf"(?:\A\s*|{gap})({person}|Assistant):[ ]?"),
    )
    for gap in (r"\n\n", r"\n")
    for person in ("Human", "User")
)
_FORMS = (_TEMPLATE, *_DIALOGUES)
_MARK_OF_A_TURN = re.compile(r"(?:\A|\n\n)(?:User|Assistant):")


def turns_of_text(text: str) -> list[Turn] | None:
    """Return the turns of a text in one of the forms above; None for any other text.

    An empty system turn, as templates write it, is left out; any other empty turn stays, for the reader to refuse.
    """
    for beginning, mark in _FORMS:
        if beginning.match(text):
            _, *parts = mark.split(text)
            roles = (_ROLES[name] for name in parts[::2])
            turns = [{"role": role, "content": part.strip()} for role, part in zip(roles, parts[1::2], strict=True)]
            return [turn for turn in turns if turn["content"] or turn["role"] != "system"]
    return None


def turns_of_prompt(value: object) -> list[Turn] | None:
    """Return the turns of a transcript, which may end with the word `Assistant:`; None for any other value."""
    turns = turns_of_text(value) if isinstance(value, str) else None
    if turns and turns[-1] == {"role": "assistant", "content": ""}:
        return turns[:-1]
    return turns


def comparison_text(prompt: Sequence[Turn], response: str) -> str | None:
    """Return the conversation in NeMo-Aligner's form; None if it cannot be read back unchanged.

    A system turn, or the mark of a turn in a text, prevents that.
    """
    return _as_text([*prompt, {"role": "assistant", "content": response}])


def prompt_text(prompt: Sequence[Turn]) -> str | None:
    """Return a prompt in NeMo-Aligner's form, which ends with `Assistant:`; None as `comparison_text`."""
    text = _as_text(prompt)
    return None if text is None else f"{text}\n\nAssistant:"


def _as_text(turns: Sequence[Turn]) -> str | None:
    if any(turn["role"] == "system" or _MARK_OF_A_TURN.search(turn["content"]) for turn in turns):
        return None
    names = {"user": "User", "assistant": "Assistant"}
    return "\n\n".join(f"{names[turn['role']]}: {turn['content']}" for turn in turns)
