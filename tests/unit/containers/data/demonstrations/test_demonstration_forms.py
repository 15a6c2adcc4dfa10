"""What the forms of demonstrations give: the turns of a conversation, and which of them is learnt."""

from typing import Any

import pytest

from containers.data.demonstrations.reading import DEMONSTRATIONS
from containers.data.demonstrations.rows import DemonstrationRow
from containers.data.formats.errors import UnknownSchemaError
from containers.data.rows import MalformedRowError

QUESTION, ANSWER = "How many legs do two cats have?", "They have 8."
USER = {"role": "user", "content": QUESTION}
ASSISTANT = {"role": "assistant", "content": ANSWER}
SYSTEM = {"role": "system", "content": "Be brief."}


def read(row: dict[str, Any]) -> DemonstrationRow:
    return DEMONSTRATIONS.form_of([row], file="a.jsonl").row_of(row)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, ASSISTANT], "prompt": "another", "prompt_id": "3"},
        {"prompt": QUESTION, "completion": ANSWER},
        {"prompt": [USER], "completion": [ASSISTANT]},
        {"prompt": f"\n\nHuman: {QUESTION}\n\nAssistant:", "completion": ANSWER},
        {"prompt": QUESTION, "response": ANSWER, "helpfulness": 4},
        {"instruction": QUESTION, "input": "", "output": ANSWER},
        {"instruction": QUESTION, "context": "", "response": ANSWER, "category": "open_qa"},
        {"conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]},
        {"system_prompt": "", "question": QUESTION, "response": ANSWER},
        {"question": QUESTION, "answer": ANSWER},
        {"problem": QUESTION, "solution": ANSWER, "answer": "8"},
        {"input": QUESTION, "output": ANSWER},
        {"text": f"\n\nHuman: {QUESTION}\n\nAssistant: {ANSWER}"},
    ],
    ids=lambda row: "+".join(row),
)
def test_every_form_gives_the_question_and_the_answer(row: dict[str, Any]) -> None:
    found = read(row)
    assert (found.prompt, found.answer) == ((USER,), ANSWER)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [SYSTEM, USER, ASSISTANT]},
        {"system": "Be brief.", "instruction": QUESTION, "output": ANSWER},
        {"system_prompt": "Be brief.", "question": QUESTION, "response": ANSWER},
        {
            "system": "Be brief.",
            "conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}],
        },
        {
            "system": "Be long.",
            "conversations": [
                {"from": "system", "value": "Be brief."},
                {"from": "human", "value": QUESTION},
                {"from": "gpt", "value": ANSWER},
            ],
        },
    ],
    ids=lambda row: "+".join(row),
)
def test_a_system_prompt_is_kept_whether_it_is_a_turn_or_a_column(row: dict[str, Any]) -> None:
    assert read(row).prompt == (SYSTEM, USER)


def test_earlier_exchanges_stay_and_a_question_without_an_answer_at_the_end_does_not() -> None:
    again = {"role": "user", "content": "And three?"}
    twelve = {"role": "assistant", "content": "12."}
    found = read({"messages": [USER, ASSISTANT, again, twelve, USER]})
    assert (found.prompt, found.answer) == ((USER, ASSISTANT, again), "12.")
    history = {"instruction": "And three?", "output": "12.", "history": [[QUESTION, ANSWER]]}
    assert read(history) == found
    assert read({"instruction": "Count.", "input": "1, 2", "output": "2"}).prompt[0]["content"] == "Count.\n1, 2"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [USER]}, "no_answer"),
        ({"messages": [SYSTEM, USER]}, "no_answer"),
        ({"messages": [ASSISTANT]}, "no_answer"),
        ({"messages": []}, "no_answer"),
        ({"messages": "hello"}, "conversation_not_turns"),
        ({"messages": ["hello", "you"]}, "no_answer"),
        ({"messages": [USER, {"role": "tool", "content": "x"}, ASSISTANT]}, "unknown_role"),
        ({"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{}]}]}, "tool_calls_not_read"),
        ({"messages": [USER, {**ASSISTANT, "reasoning_content": "hm"}]}, "reasoning_content_not_read"),
        ({"messages": [USER, {"role": "assistant", "content": " "}]}, "empty_response"),
        ({"messages": [ASSISTANT, USER, ASSISTANT]}, "turns_do_not_alternate"),
        ({"prompt": QUESTION, "completion": 3}, "response_not_text"),
        ({"prompt": None, "completion": ANSWER}, "turn_without_text"),
        ({"instruction": QUESTION, "output": ANSWER, "history": ["a"]}, "history_not_exchanges"),
        ({"text": "Once upon a time"}, "text_is_no_transcript"),
        ({"conversations": [{"from": "tool", "value": "x"}]}, "unknown_role"),
        ({"question": QUESTION, "answer": ANSWER, "language": 3}, "language_not_text"),
        ({"question": QUESTION, "answer": ANSWER, "system": 3}, "system_not_text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_row_that_cannot_be_used_says_why(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(MalformedRowError) as caught:
        read(row)
    assert caught.value.reason == reason


def test_an_unknown_form_is_refused_with_the_columns_found_and_wanted() -> None:
    with pytest.raises(UnknownSchemaError) as caught:
        DEMONSTRATIONS.form_of([{"prompt": 1, "chosen": 2, "rejected": 3}], file="a.jsonl")
    assert "a.jsonl has no columns that are known to hold demonstrations. Columns found: prompt, chosen" in str(
        caught.value
    )
    assert "demonstrations.columns" in str(caught.value)


def test_the_same_question_with_another_answer_is_another_row_of_the_same_prompt() -> None:
    one, other = (read({"question": QUESTION, "answer": answer}) for answer in ("8", "Eight."))
    assert one.prompt_id == other.prompt_id and one.row_id != other.row_id
