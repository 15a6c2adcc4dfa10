"""Parsers of whole conversations: ShareGPT's with two answers, and the two conversations of an arena battle.

ShareGPT DPO           conversations [{from, value}, …], chosen and rejected each {from, value} or text
arena conversations    conversation_a, conversation_b [{role, content}, …], winner
"""

from collections.abc import Mapping
from typing import Any

from containers.data.formats.sides import last_turn, plain_response, score_difference, strength, with_system
from containers.data.rows import MalformedRowError, PreferenceRow, Turn, Value, column, make_row, read_prompt

_WINNERS = {
    "a": "a",
    "b": "b",
    "tie": "tie",
    "model_a": "a",
    "model_b": "b",
    "tie (bothbad)": "tie",
    "both_bad": "tie",
    "bothbad": "tie",
}
_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
}


def parse_sharegpt_dpo(value: Value) -> PreferenceRow:
    """ShareGPT with two answers: the conversation is the prompt, and ends with the user's turn."""
    prompt = with_system(value, read_prompt(turns_of_sharegpt(column(value, "conversations"))))
    difference = score_difference(value)
    return make_row(
        value,
        prompt=prompt,
        chosen=_answer(column(value, "chosen"), prompt),
        rejected=_answer(column(value, "rejected"), prompt),
        margin=1.0 if difference is None else strength(difference),
        signs=() if difference is None else (difference,),
    )


def turns_of_sharegpt(given: object) -> list[dict[str, Any]]:
    """The turns `{from, value}` of a conversation with our names; an empty system turn is left out.

    Raises:
        MalformedRowError: they are no list of turns, or of another speaker than system, human and assistant.
    """
    if not isinstance(given, list | tuple):
        reason = "conversations_are_encoded_json" if _is_encoded(given) else "conversations_not_turns"
        raise MalformedRowError(reason, repr(given)[:80])
    turns = [_turn(item) for item in given]
    if turns and turns[0]["role"] == "system" and isinstance(turns[0]["content"], str) and not turns[0]["content"]:
        return turns[1:]
    return turns


def parse_arena_conversations(value: Value) -> PreferenceRow:
    """Arena: both conversations without their last turn must be the same; they are the prompt."""
    sides = [_turns(column(value, name), name) for name in ("conversation_a", "conversation_b")]
    left, right = sides
    if left[:-1] != right[:-1]:
        raise MalformedRowError("turns_differ_before_the_last", f"{len(left)} and {len(right)} turns")
    prompt = read_prompt(left[:-1])
    return make_vote(
        value, prompt=prompt, response_a=last_turn(left[-1:], prompt), response_b=last_turn(right[-1:], prompt)
    )


def make_vote(value: Value, *, prompt: tuple[Turn, ...], response_a: str, response_b: str) -> PreferenceRow:
    """The row of a battle; the column `winner` says whose answer is chosen. A tie has the strength 0.

    Raises:
        MalformedRowError: the winner is no known name.
    """
    winner = column(value, "winner")
    name = _WINNERS.get(winner.strip().lower()) if isinstance(winner, str) else None
    if name is None:
        raise MalformedRowError("winner_unknown", repr(winner)[:80])
    chosen, rejected = (response_b, response_a) if name == "b" else (response_a, response_b)
    return make_row(value, prompt=prompt, chosen=chosen, rejected=rejected, margin=0.0 if name == "tie" else 1.0)


def _turns(value: object, name: str) -> list[Any]:
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise MalformedRowError(f"{name}_not_two_turns", repr(value)[:80])
    return list(value)


def _turn(item: object) -> dict[str, Any]:
    """A turn of ShareGPT (`from`, `value`), or of messages (`role`, `content`), with our names."""
    if not isinstance(item, Mapping):
        raise MalformedRowError("conversations_not_turns", repr(item)[:80])
    if "from" not in item:
        return {"role": item.get("role"), "content": item.get("content")}
    speaker = item["from"]
    role = _SHAREGPT_ROLES.get(speaker.strip().lower()) if isinstance(speaker, str) else None
    if role is None:
        raise MalformedRowError("unknown_role", repr(speaker)[:80])
    return {"role": role, "content": item.get("value")}


def _answer(value: object, prompt: tuple[Turn, ...]) -> str:
    """Text, a turn, or a list that ends with the assistant's turn and begins with nothing else than the prompt."""
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, list | tuple):
        return last_turn([_turn(item) for item in value], prompt)
    return plain_response(value)


def _is_encoded(value: object) -> bool:
    return isinstance(value, str) and value.lstrip().startswith("[{")
