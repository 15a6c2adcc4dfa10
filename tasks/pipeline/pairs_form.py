"""The form in which Prefect shows a person some pairs, blind; the run is suspended, and resumed with the choices."""

import logging
import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, create_model

from containers.contracts.base import Frozen
from containers.contracts.digests import write_atomically
from containers.formatting import markdown_text, shorten
from tasks.judges.people import NAME, PairChoice, PeopleChoices, PeopleWaitedForError, ShownPair
from tasks.prefect_sync.api import present_flow_run
from tasks.prefect_sync.forms import (
    RESPONSE,
    Form,
    can_be_suspended,
    forget_input,
    form_inputs,
    number_of_next_form,
    suspend_with,
)

logger = logging.getLogger(__name__)

# A form that is longer is read to its end by few.
PAIRS_OF_A_FORM = 8
_LONGEST_TEXT = 6_000
_CHOICES: dict[str, PairChoice] = {"A is better": "first", "B is better": "second", "a tie": "tie"}
_LATER = "later"
_Answer = Literal["A is better", "B is better", "a tie", "later"]


class ShownForm(Frozen):
    """Which pairs a form shows, in which order of answers; it lies beside the choices until its answer was taken."""

    pairs: tuple[tuple[int, bool], ...]


def take_choices(choices: PeopleChoices) -> list[str]:
    """Keep what people chose in Prefect's forms of this run; return why some of it was not taken.

    What was taken is deleted in Prefect: nothing else knows it any more, and `rlhf judge --delete` deletes it.
    """
    flow_run = present_flow_run()
    if flow_run is None or not can_be_suspended(flow_run):
        return []
    refused = []
    try:
        for item in form_inputs(str(flow_run.id), _prefix(choices)):
            if item.key.endswith(RESPONSE) and isinstance(item.decoded_value, dict):
                number = item.key.removesuffix(RESPONSE).rpartition("-")[2]
                refused.append(_taken(choices, item.decoded_value, number=number))
                forget_input(str(flow_run.id), item.key)
    except Exception as error:  # without a server there is no answer; the run waits
        logger.warning("Prefect could not be queried for choices: %s", error)
    return [text for text in refused if text]


def wait_for_people(error: BaseException) -> None:
    """If people have yet to judge pairs, suspend the flow run with a form, if Prefect can start it again.

    Call it at the end of a run, after its report. Does nothing for any other error.

    Raises:
        Pause: the flow run is suspended, and this process ends.
    """
    if isinstance(error, PeopleWaitedForError) and (
        problem := suspend_for_pairs(error.waiting[0], refused=error.refused)
    ):
        error.add_note(problem)
        logger.warning("%s", problem)


def suspend_for_pairs(choices: PeopleChoices, *, refused: Sequence[str]) -> str:
    """Suspend the run with a form of the next pairs. Return why that failed; empty where Prefect has no form for it.

    Raises:
        Pause: the run is suspended; Prefect's engine takes over.
    """
    flow_run = present_flow_run()
    if flow_run is None or not can_be_suspended(flow_run):
        return ""
    try:
        number = number_of_next_form(str(flow_run.id), _prefix(choices))
        shown = [choices.shown(f"form {number}", place) for place in choices.next_places(PAIRS_OF_A_FORM)]
        form = _form(choices, shown, refused=refused)
        record = ShownForm(pairs=tuple((pair.place, pair.policy_first) for pair in shown))
        write_atomically(choices.folder / _file(number), record.model_dump_json())
    except Exception as error:  # the run waits as in a terminal
        return f"Prefect could not suspend the run ({type(error).__name__}: {error})."
    return suspend_with(form, flow_run_id=str(flow_run.id), pause=f"{_prefix(choices)}{number}", left_s=None)


def _prefix(choices: PeopleChoices) -> str:
    return f"pairs-{choices.folder.name[:16]}-"


def _file(number: object) -> str:
    return f"form-{number}.json"


def _taken(choices: PeopleChoices, said: dict[str, Any], *, number: str) -> str:
    """Keep the choices of one form; return why they were not taken."""
    file = choices.folder / _file(number)
    if not file.is_file():  # it was taken before
        return ""
    person = str(said.get("by") or "").strip()
    if not re.fullmatch(NAME, person):
        return "The name may have up to 64 letters, digits, `.`, `_` or `-`."
    before, known = choices.of(person), 0
    for place_in_form, (place, policy_first) in enumerate(ShownForm.model_validate_json(file.read_bytes()).pairs, 1):
        choice = _CHOICES.get(str(said.get(f"pair_{place_in_form}")))
        if choice is None:
            continue
        if place in before:
            known += 1
            continue
        shown = choices.shown(person, place).model_copy(update={"policy_first": policy_first})
        choices.keep(person, shown, choice)
    file.unlink()
    return f"{person} had judged {known} of these pairs before; the earlier choice counts." if known else ""


def _form(choices: PeopleChoices, shown: Sequence[ShownPair], *, refused: Sequence[str]) -> type[Form]:
    parts = [f"**Not taken:** {markdown_text(text)}" for text in refused]
    parts.append(f"Which answer is better? You do not see whose it is. {markdown_text(choices.state_text())}.")
    parts.append("Your name is kept with each choice.")
    # At the name, since Prefect's page hides the description of a form that is higher than the window.
    by = Field(..., title="Your name", pattern=NAME, description="\n\n".join(parts))
    fields: dict[str, Any] = {"by": (str, by)}
    for number, pair in enumerate(shown, start=1):
        fields[f"pair_{number}"] = (_Answer, Field(_LATER, title=f"Pair {number}", description=_text(pair)))
    return create_model("PairsToJudge", __base__=Form, **fields)


def _text(pair: ShownPair) -> str:
    """The pair as Markdown, which Prefect shows above its field."""
    turns = [f"**{markdown_text(turn.role)}:** {_lines(turn.content)}" for turn in pair.prompt]
    return "\n\n".join([*turns, "**A**", _lines(pair.first), "**B**", _lines(pair.second)])


def _lines(text: str) -> str:
    """Foreign text in its own lines: without links, images or HTML."""
    lines = shorten(text, _LONGEST_TEXT).splitlines()
    return "\n\n".join(markdown_text(line, limit=_LONGEST_TEXT) for line in lines if line.strip()) or "*(nothing)*"
