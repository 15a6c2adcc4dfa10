"""Parsers of a question with two answers under names other than `prompt`, and a system prompt beside it.

Orca DPO          system, question, chosen, rejected                  also with `input` for `question` (distilabel)
Alpaca ranking    instruction, input, chosen, rejected                `input` follows the instruction
Argilla           instruction, chosen_response, rejected_response     with ratings of both
"""

from containers.data.formats.schemas import parse_trl
from containers.data.formats.sides import turns_or_text
from containers.data.rows import MalformedRowError, PreferenceRow, Value, column

_TIED = "tie"


def parse_orca(value: Value) -> PreferenceRow:
    """Orca: `question`, or distilabel's `input`, after the system prompt. Rows that distilabel calls a tie are ties."""
    question = column(value, "question" if "question" in value else "input")
    return _parse(value, question, column(value, "chosen"), column(value, "rejected"))


def parse_alpaca_ranking(value: Value) -> PreferenceRow:
    """Alpaca's instruction and input as one user turn; a conversation before them is not read."""
    history = value.get("history")
    if history is not None and (not isinstance(history, list | tuple) or history):
        raise MalformedRowError("history_not_read", repr(history)[:80])
    return _parse(value, instruction_of(value), column(value, "chosen"), column(value, "rejected"))


def parse_argilla(value: Value) -> PreferenceRow:
    """Argilla: the ratings beside the answers tell the strength; equal ones are a tie."""
    return _parse(value, instruction_of(value), column(value, "chosen_response"), column(value, "rejected_response"))


def instruction_of(value: Value) -> object:
    """Alpaca's instruction, with `input` on a line of its own where there is one, as LLaMA-Factory joins them."""
    instruction, more = column(value, "instruction"), value.get("input")
    if more is None or not isinstance(instruction, str):
        return instruction
    if not isinstance(more, str):
        raise MalformedRowError("input_not_text", repr(more)[:80])
    return "\n".join(text for text in (instruction, more) if text and not text.isspace())


def _parse(value: Value, question: object, chosen: object, rejected: object) -> PreferenceRow:
    if question is None:
        raise MalformedRowError("prompt_not_text_or_turns", repr(question))
    plain = {**value, "prompt": question, "chosen": chosen, "rejected": rejected}
    sides = [turns_or_text(side) for side in (chosen, rejected)]
    if all(isinstance(side, list) and len(side) > 1 for side in sides):
        # Whole conversations say more than the question beside them.
        plain["prompt"] = None
    if value.get("status") == _TIED and value.get("margin") is None:
        plain["margin"] = 0
    return parse_trl(plain)
