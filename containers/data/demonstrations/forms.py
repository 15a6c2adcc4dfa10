"""The forms of demonstrations by their columns, and their parsers. Pure; used by the check and the stage.

    messages                                chat messages (UltraChat, OpenAI, TRL)
    prompt, completion | response           text, or turns (TRL, HelpSteer2)
    instruction, output                     Alpaca, with `input`; `history` is a list of earlier exchanges
    instruction, response                   Dolly, with `context`
    conversations                           ShareGPT
    question, answer | response             GSM8K's solutions, OpenOrca
    problem, solution                       MATH, OpenR1
    input, output                           NeMo
    text                                    a transcript (HH-RLHF, NeMo-Aligner), and nothing else beside it

A column `system` or `system_prompt` is the system turn, unless the conversation has one.
"""

from collections.abc import Callable, Mapping
from typing import Any

from containers.data.demonstrations.rows import DemonstrationRow, make_demonstration
from containers.data.formats.dialogues import turns_of_sharegpt
from containers.data.formats.questions import instruction_of
from containers.data.formats.sides import with_system
from containers.data.formats.transcripts import turns_of_prompt, turns_of_text
from containers.data.row_forms import RowForm
from containers.data.rows import MalformedRowError, Value, column

_SYSTEM_COLUMNS = ("system", "system_prompt")


def _form(
    name: str, columns: str, turns_of: Callable[[Value], object], *, stands_alone: bool = False
) -> RowForm[DemonstrationRow]:
    """A form whose turns `turns_of` finds in a row's object."""

    def parse(value: Value, _: Mapping[str, Any]) -> DemonstrationRow:
        row = make_demonstration(value, _without_empty_system(turns_of(value)))
        system = next((value[name] for name in _SYSTEM_COLUMNS if value.get(name) is not None), None)
        prompt = with_system({"system": system}, row.prompt)
        if prompt is row.prompt:
            return row
        return make_demonstration(value, [*prompt, {"role": "assistant", "content": row.answer}])

    return RowForm(name, tuple(columns.split()), parse, stands_alone=stands_alone)


def _without_empty_system(turns: object) -> object:
    """Templates write an empty system turn where there is none."""
    if isinstance(turns, list | tuple) and turns and isinstance(turns[0], Mapping):
        return turns[1:] if turns[0].get("role") == "system" and turns[0].get("content") == "" else turns
    return turns


def _exchange(prompt: object, answer: object) -> list[Any]:
    """The turns of a prompt and of its answer; each may be text or turns."""
    transcript, after = turns_of_prompt(prompt), answer
    before = prompt if transcript is None else transcript
    first = list(before) if isinstance(before, list | tuple) else [{"role": "user", "content": before}]
    last = list(after) if isinstance(after, list | tuple) else [{"role": "assistant", "content": after}]
    return [*first, *last]


def _columns(prompt: str, answer: str) -> Callable[[Value], object]:
    return lambda value: _exchange(column(value, prompt), column(value, answer))


def _alpaca(value: Value) -> object:
    history = value.get("history") or ()
    if not isinstance(history, list | tuple) or not all(
        isinstance(old, list | tuple) and len(old) == 2 for old in history
    ):
        raise MalformedRowError("history_not_exchanges", repr(history)[:80])
    earlier = [turn for question, answer in history for turn in _exchange(question, answer)]
    return [*earlier, *_exchange(instruction_of(value), column(value, "output"))]


def _dolly(value: Value) -> object:
    return _exchange(instruction_of({**value, "input": value.get("context")}), column(value, "response"))


def _transcript(value: Value) -> object:
    text = column(value, "text")
    turns = turns_of_text(text) if isinstance(text, str) else None
    if turns is None:
        raise MalformedRowError("text_is_no_transcript", repr(text)[:80])
    return turns


FORMS = (
    _form("chat messages", "messages", lambda value: column(value, "messages")),
    _form("ShareGPT", "conversations", lambda value: turns_of_sharegpt(column(value, "conversations"))),
    _form("prompt and completion", "prompt completion", _columns("prompt", "completion")),
    _form("prompt and response", "prompt response", _columns("prompt", "response")),
    _form("Alpaca", "instruction output", _alpaca),
    _form("Dolly", "instruction response", _dolly),
    _form("OpenOrca", "question response", _columns("question", "response")),
    _form("GSM8K", "question answer", _columns("question", "answer")),
    _form("MATH, OpenR1", "problem solution", _columns("problem", "solution")),
    _form("NeMo", "input output", _columns("input", "output")),
    _form("transcripts", "text", _transcript, stands_alone=True),
)
# Every column that any form reads.
KNOWN_COLUMNS = tuple(
    dict.fromkeys(
        (
            *(name for form in FORMS for name in form.columns),
            *("input", "history", "context", *_SYSTEM_COLUMNS, "domain", "language"),
        )
    )
)
