"""What the forms of prompt sets give: prompt, reference answer and difficulty."""

from typing import Any

import pytest

from containers.data.formats.errors import UnknownSchemaError
from containers.data.prompts.reading import PROMPTS
from containers.data.prompts.rows import PromptRow
from containers.data.rows import MalformedRowError

QUESTION = "How many legs do two cats have?"
USER = {"role": "user", "content": QUESTION}
ASSISTANT = {"role": "assistant", "content": "8"}


def read(row: dict[str, Any], *, keep: tuple[str, ...] = ()) -> PromptRow:
    return PROMPTS.form_of([row], file="a.jsonl").row_of(row, keep=keep)


@pytest.mark.parametrize(
    "row",
    [
        {"problem": QUESTION, "answer": "8", "difficulty": "3/8"},
        {"problem": QUESTION, "solution": "Each has four, so $\\boxed{8}$ in all.", "answer": None},
        {"question": QUESTION, "answer": "2 * 4 = <<2*4=8>>8 legs\n#### 8"},
        {"prompt": QUESTION, "solution": "8"},
        {"prompt": [USER], "reward_model": {"ground_truth": "8", "style": "rule"}, "data_source": "made"},
        {"prompt": [USER, ASSISTANT], "answer": 8},
        {"messages": [USER, ASSISTANT], "ground_truth": "8"},
        {"context": [USER], "answers": ["8"]},
        {"instruction": QUESTION, "input": "", "output": "Eight.", "answer": "8"},
        {"conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": "8"}], "answer": "8"},
        {"prompt": f"\n\nHuman: {QUESTION}\n\nAssistant:", "answer": "8"},
    ],
    ids=lambda row: "+".join(row),
)
def test_prompt_and_answer_of_every_form(row: dict[str, Any]) -> None:
    found = read(row)
    assert found.prompt == (USER,)
    assert found.answer == "8"


def test_each_answer_of_a_list_is_accepted_and_the_same_one_counts_once() -> None:
    found = read({"problem": QUESTION, "answers": ["0.01", "", "0.02", "0.01", 3]})
    assert (found.answer, found.other_answers) == ("0.01", ("0.02", "3"))
    assert read({"problem": QUESTION, "answers": [], "solution": "8"}).answer == "8"


def test_a_prompt_of_nemo_aligner_ends_where_the_assistant_begins() -> None:
    assert read({"text": f"User: {QUESTION}\n\nAssistant:"}).prompt == (USER,)
    assert (
        read({"instruction": QUESTION, "input": "Both are whole."}).prompt[0]["content"].endswith("?\nBoth are whole.")
    )


@pytest.mark.parametrize(
    ("given", "number"), [("3/8", 0.375), ("0/4", 0.0), (0.25, 0.25), ("Level 5", 5.0), (7, 7.0), (None, None)]
)
def test_difficulty_is_a_number(given: object, number: float | None) -> None:
    assert read({"problem": QUESTION, "difficulty": given}).difficulty == number


def test_a_long_solution_without_a_marked_answer_is_no_answer() -> None:
    assert read({"problem": QUESTION, "solution": "Each of them has four, as every cat has. " * 5}).answer is None
    assert read({"problem": QUESTION, "answer": "", "solution": "8"}).answer == "8"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"problem": QUESTION, "difficulty": "hard"}, "difficulty_not_a_number"),
        ({"problem": QUESTION, "difficulty": "1/0"}, "difficulty_not_a_number"),
        ({"problem": QUESTION, "answer": ["0.01", [2]]}, "answer_not_text"),
        ({"problem": QUESTION, "answer": True}, "answer_not_text"),
        ({"problem": QUESTION, "answer": {"ground_truth": {"a": 1}}}, "answer_not_text"),
        ({"problem": "  "}, "empty_prompt"),
        ({"problem": 3}, "prompt_not_text_or_turns"),
        ({"messages": [ASSISTANT]}, "empty_prompt"),
        ({"conversations": [{"from": "tool", "value": "x"}]}, "unknown_role"),
        ({"conversations": ["x"]}, "conversations_not_turns"),
        ({"problem": QUESTION, "language": 3}, "language_not_text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_row_that_cannot_be_used_says_why(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(MalformedRowError) as caught:
        read(row)
    assert caught.value.reason == reason


def test_the_columns_that_are_kept_must_be_there() -> None:
    assert read({"problem": QUESTION, "tests": ["a"], "other": 1}, keep=("tests",)).columns == {"tests": ["a"]}
    with pytest.raises(MalformedRowError, match="missing_column: tests"):
        read({"problem": QUESTION}, keep=("tests",))


def test_the_answer_is_part_of_the_row_and_not_of_the_prompt() -> None:
    one, other = (read({"problem": QUESTION, "answer": answer}) for answer in ("8", "9"))
    assert one.prompt_id == other.prompt_id
    assert one.row_id != other.row_id


def test_columns_that_hold_no_prompt_are_named() -> None:
    with pytest.raises(UnknownSchemaError, match=r"Columns found: frage, antwort\. Wanted one of: .*`question`"):
        PROMPTS.form_of([{"frage": QUESTION, "antwort": "8"}], file="a.jsonl")
