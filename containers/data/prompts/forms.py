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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from containers.data.answers import written_answer
from containers.data.formats.columns import names_shown
from containers.data.formats.errors import UnknownSchemaError
from containers.data.formats.transcripts import turns_of_prompt
from containers.data.prompts.rows import PromptRow, make_prompt_row
from containers.data.rows import MalformedRowError, Value, column, read_prompt

ANSWER_COLUMNS = ("final_answer", "answer", "ground_truth", "reward_model", "answers", "solution")
DIFFICULTY_COLUMNS = ("difficulty", "level")
_SHAREGPT_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_FRACTION = re.compile(r"(?:Level )?\s*(\d+(?:\.\d+)?)\s*(?:/\s*(\d+(?:\.\d+)?))?")
# A solution without a mark of its answer is an answer only if it is that short.
_ANSWER_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class PromptForm:
    """A form of prompt sets.

    Attributes:
        columns: a row needs them.
        stands_alone: no other column may be there.
    """

    name: str
    columns: tuple[str, ...]
    prompt_of: Callable[[Value], object]
    stands_alone: bool = False

    def fits(self, names: Collection[str]) -> bool:
        """Whether a row with columns of these names can be of this form."""
        return set(self.columns).issubset(names) and (len(names) == len(self.columns) or not self.stands_alone)

    def parse(self, value: Value, *, keep: Sequence[str] = ()) -> PromptRow:
        """Return the row of one object.

        Args:
            keep: further columns that the row must have, and keeps.

        Raises:
            MalformedRowError: it cannot be used; names why.
        """
        given = self.prompt_of(value)
        turns = turns_of_prompt(given)
        return make_prompt_row(
            value,
            prompt=read_prompt(given if turns is None else turns),
            answers=_answers(value),
            difficulty=_difficulty(value),
            columns={name: column(value, name) for name in keep},
        )


def _without_answer(turns: object) -> object:
    """Return chat messages without the assistant's turn at their end."""
    if isinstance(turns, list | tuple) and turns and isinstance(turns[-1], Mapping):
        return turns[:-1] if turns[-1].get("role") == "assistant" else turns
    return turns


def _of_sharegpt(turns: object) -> object:
    if not isinstance(turns, list | tuple):
        return turns
    return [
        {"role": _SHAREGPT_ROLES.get(str(turn.get("from")), turn.get("from")), "content": turn.get("value")}
        if isinstance(turn, Mapping)
        else turn
        for turn in turns
    ]


def _of_alpaca(value: Value) -> object:
    instruction, more = column(value, "instruction"), value.get("input")
    if not isinstance(instruction, str) or not isinstance(more, str) or not more.strip():
        return instruction
    return f"{instruction}\n\n{more}"


FORMS = (
    PromptForm("prompts", ("prompt",), lambda value: _without_answer(column(value, "prompt"))),
    PromptForm("chat messages", ("messages",), lambda value: _without_answer(column(value, "messages"))),
    PromptForm("POLARIS, OpenR1, MATH", ("problem",), lambda value: column(value, "problem")),
    PromptForm("GSM8K", ("question",), lambda value: column(value, "question")),
    PromptForm("HelpSteer3", ("context",), lambda value: column(value, "context")),
    PromptForm("Alpaca", ("instruction",), _of_alpaca),
    PromptForm(
        "ShareGPT", ("conversations",), lambda value: _without_answer(_of_sharegpt(column(value, "conversations")))
    ),
    PromptForm("NeMo-Aligner prompts", ("text",), lambda value: column(value, "text"), stands_alone=True),
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


def form_of(rows: Iterable[Iterable[str]], *, file: str) -> PromptForm:
    """Return the form whose columns most of `rows` have; the first in `FORMS` if several are equal.

    Args:
        rows: the column names of each row.
        file: how messages name the file.

    Raises:
        UnknownSchemaError: no row has the columns of any form.
    """
    hits: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for row in rows:
        names = tuple(row)
        found.update(names)
        hits.update(form.name for form in FORMS if form.fits(names))
    if not hits:
        wanted = "; ".join(f"{form.name} (`{'`, `'.join(form.columns)}`)" for form in FORMS)
        raise UnknownSchemaError(
            file,
            f"has no column that is known to hold prompts. Columns found: {names_shown(found)}.",
            f"Wanted one of: {wanted}. Name the column in prompts.columns (our name: the file's name), or convert the "
            f"file.",
        )
    best = max(hits.values())
    return next(form for form in FORMS if hits[form.name] == best)


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
