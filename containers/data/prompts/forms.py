"""The forms of prompt sets by their columns, and their parsers. Pure; used by the check and the stage.

    prompt              text, chat messages or a transcript (plain prompts, DAPO, verl, GSM8K as chat)
    messages            chat messages; an answer at the end is left out
    problem             POLARIS, OpenR1, MATH
    question            GSM8K
    context             HelpSteer3
    instruction         Alpaca, with `input`
    conversations       ShareGPT; an answer at the end is left out
    text                NeMo-Aligner's prompts, and nothing else beside it

The reference answer, in any form: `final_answer`, `answer`, `ground_truth`, `reward_model.ground_truth` or `solution`.
Of a worked solution it is what stands behind `####` or in the last box.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from containers.data.answers import written_answer
from containers.data.formats.dialogues import turns_of_sharegpt
from containers.data.formats.questions import instruction_of
from containers.data.formats.transcripts import turns_of_prompt
from containers.data.prompts.rows import PromptRow, make_prompt_row
from containers.data.row_forms import RowForm
from containers.data.rows import MalformedRowError, Value, column, read_prompt

ANSWER_COLUMNS = ("final_answer", "answer", "ground_truth", "reward_model", "answers", "solution")
DIFFICULTY_COLUMNS = ("difficulty", "level")
_FRACTION = re.compile(r"(?:Level )?\s*(\d+(?:\.\d+)?)\s*(?:/\s*(\d+(?:\.\d+)?))?")
# A solution without a mark of its answer is an answer only if it is that short.
_ANSWER_CHARACTERS = 100


def _without_answer(turns: object) -> object:
    """Return chat messages without the assistant's turn at their end."""
    if isinstance(turns, list | tuple) and turns and isinstance(turns[-1], Mapping):
        return turns[:-1] if turns[-1].get("role") == "assistant" else turns
    return turns


def _form(
    name: str, columns: str, prompt_of: Callable[[Value], object], *, stands_alone: bool = False
) -> RowForm[PromptRow]:
    """A form whose prompt `prompt_of` finds in a row's object: text, chat messages or a transcript."""

    def parse(value: Value, kept: Mapping[str, Any]) -> PromptRow:
        given = prompt_of(value)
        turns = turns_of_prompt(given)
        return make_prompt_row(
            value,
            prompt=read_prompt(given if turns is None else turns),
            answers=_answers(value),
            difficulty=_difficulty(value),
            columns=kept,
        )

    return RowForm(name, tuple(columns.split()), parse, stands_alone=stands_alone)


FORMS = (
    _form("prompts", "prompt", lambda value: _without_answer(column(value, "prompt"))),
    _form("chat messages", "messages", lambda value: _without_answer(column(value, "messages"))),
    _form("POLARIS, OpenR1, MATH", "problem", lambda value: column(value, "problem")),
    _form("GSM8K", "question", lambda value: column(value, "question")),
    _form("HelpSteer3", "context", lambda value: column(value, "context")),
    _form("Alpaca", "instruction", instruction_of),
    _form(
        "ShareGPT", "conversations", lambda value: _without_answer(turns_of_sharegpt(column(value, "conversations")))
    ),
    _form("NeMo-Aligner prompts", "text", lambda value: column(value, "text"), stands_alone=True),
)


# Every column that any form reads.
KNOWN_COLUMNS = tuple(
    dict.fromkeys(
        (
            *(name for form in FORMS for name in form.columns),
            "input",
            *ANSWER_COLUMNS,
            *DIFFICULTY_COLUMNS,
            "domain",
            "language",
        )
    )
)


def _answers(value: Value) -> tuple[str, ...]:
    """Return the reference answers of a row, each of which is right; empty where it has none.

    Raises:
        MalformedRowError: an answer is neither text nor number.
    """
    for name in ANSWER_COLUMNS:
        given: Any = value.get(name)
        if isinstance(given, Mapping):
            given = given.get("ground_truth")
        several = given if isinstance(given, list | tuple) else (given,)
        some = [one for one in several if one is not None and one != ""]
        for one in some:
            if isinstance(one, bool) or not isinstance(one, str | int | float):
                raise MalformedRowError("answer_not_text", repr(given)[:80])
        marked = [_marked(str(one), is_solution=name == "solution") for one in some]
        if found := tuple(dict.fromkeys(answer for answer in marked if answer)):
            return found
    return ()


def _marked(text: str, *, is_solution: bool) -> str:
    """Return the answer that a text marks; else the text, unless it is a long solution."""
    answer = written_answer(text)
    if is_solution and answer == text.strip() and len(answer) > _ANSWER_CHARACTERS:
        return ""
    return answer


def _difficulty(value: Value) -> float | None:
    """Return the difficulty as a number: `3/8` is 0.375, `Level 5` is 5; None where the row gives none.

    Raises:
        MalformedRowError: it is no number.
    """
    for name in DIFFICULTY_COLUMNS:
        given = value.get(name)
        if given is None:
            continue
        if isinstance(given, int | float) and not isinstance(given, bool):
            return float(given)
        found = _FRACTION.fullmatch(given.strip()) if isinstance(given, str) else None
        if found is None or (found[2] is not None and float(found[2]) == 0):
            raise MalformedRowError("difficulty_not_a_number", repr(given)[:80])
        return float(found[1]) / float(found[2] or 1)
    return None
