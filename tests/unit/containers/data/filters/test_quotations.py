"""A question that many prompts quote is no template: it must be found, and its wordings stay on one side of a split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.truth.quotation import Row, Words, found, quotations, splits, table, templates, unrelated, whole
from containers.data.filters.prompt_words import Prompts
from containers.data.filters.similar_prompts import prompts_for_split, similar_prompts
from containers.data.rows import Turn

QUESTION = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did "
    "Natalia sell altogether in April and May?"
)
WORDINGS = (
    "Answer in French please: {}",
    "Think step by step and give only a number. {}",
    "You are a tutor for young pupils. {} Explain each step in detail.",
    "Solve this and show your work: {} Thanks",
    "Here is an exercise from my book: {} What is the result?",
    "Write a Python function that solves the following. {}",
    "{} Reply as JSON with one key",
    "Please help my son. {} He has to hand it in tomorrow.",
)
# Drawn once: the property tests choose among them.
OTHERS = Words(3).texts(200)
words_of_questions = st.integers(min_value=0, max_value=2**32 - 1)


def groups_of(wordings: list[str], *, beside: list[str], of_split: bool = True) -> set[str]:
    """The names of the groups in which the wordings are."""
    prompts: dict[str, tuple[Turn, ...]] = {text: ({"role": "user", "content": text},) for text in (*wordings, *beside)}
    groups = (prompts_for_split if of_split else similar_prompts)(Prompts(prompts), overlap=0.9)
    return {groups.of(text) for text in wordings}


@pytest.mark.parametrize("number", range(1, 9))
def test_a_question_is_found_in_all_prompts_that_quote_it_however_many_they_are(number: int) -> None:
    quoting = [wording.format(QUESTION) for wording in WORDINGS[:number]]
    assert found([QUESTION, *OTHERS[:50]], [*quoting, *OTHERS[50:]]) == set(quoting)


@pytest.mark.parametrize("number", range(2, 9))
def test_wordings_of_one_question_are_one_group(number: int) -> None:
    wordings = [wording.format(QUESTION) for wording in WORDINGS[:number]]
    assert len(groups_of(wordings, beside=OTHERS)) == 1
    # Beside a validation file most of a prompt must be the same, for rows are dropped.
    short = [f"{wording.split()[0]} {QUESTION}" for wording in WORDINGS[:number]]
    assert len(groups_of(short, beside=OTHERS, of_split=False)) == 1


def test_fifty_wordings_are_one_group_and_a_thousand_prompts_with_one_instruction_are_none() -> None:
    words = Words(5)
    wordings = whole(words, words.text(30), 50)
    assert len(groups_of(wordings, beside=words.texts(500))) == 1
    instruction = words.text(40)
    filled = [f"{instruction} {words.text(10)}" for _ in range(1000)]
    assert len(groups_of(filled, beside=[], of_split=False)) == 1000
    assert len(groups_of(filled, beside=[])) > 900


@pytest.mark.parametrize("num_prompts", [30, 200])
@pytest.mark.parametrize("number", [5, 8, 12, 21, 25])
def test_wordings_of_one_question_are_one_group_in_small_data_too(num_prompts: int, number: int) -> None:
    words = Words(7)
    question = words.text(30)
    # Each with words of its own on both sides: none stands whole in another.
    wordings = [f"{words.text(6)} {question} {words.text(6)}" for _ in range(number)]
    others = words.texts(num_prompts - number)
    assert len(groups_of(wordings, beside=others)) == 1
    assert len(groups_of(others, beside=wordings)) == len(others)


@pytest.mark.parametrize("num_prompts", [30, 80])
def test_one_instruction_that_all_prompts_share_leaves_something_to_divide(num_prompts: int) -> None:
    words = Words(8)
    instruction = words.text(40)
    assert len(groups_of([f"{instruction} {words.text(10)}" for _ in range(num_prompts)], beside=[])) == num_prompts


def test_a_prompt_that_stands_whole_in_more_prompts_than_a_template_may_be_in_is_like_each_of_them() -> None:
    words = Words(6)
    question = words.text(20)
    assert len(groups_of([question, *whole(words, question, 150)], beside=[], of_split=False)) == 1


@given(seed=words_of_questions, length=st.integers(5, 80), number=st.integers(1, 12))
def test_every_whole_quotation_of_five_words_or_more_is_found(seed: int, length: int, number: int) -> None:
    words = Words(seed)
    question = words.text(length)
    quoting = whole(words, question, number)
    assert set(quoting) <= found([question, *OTHERS[:20]], [*quoting, *OTHERS[20:60]])


@given(seed=words_of_questions, number=st.integers(3, 12), own=st.integers(12, 20))
def test_a_template_alone_is_not_found_in_a_prompt_with_other_words(seed: int, number: int, own: int) -> None:
    words = Words(seed)
    template = words.text(20)
    # Words that no text shares by chance: numbers.
    suite, *data = (" ".join([template, *(f"{place}x{word}" for word in range(own))]) for place in range(number + 1))
    assert found([suite, *OTHERS[:20]], [*data, *OTHERS[20:60]]) == set()


@given(seed=words_of_questions, number=st.integers(2, 9))
def test_wordings_that_hold_one_question_are_one_group_in_any_order(seed: int, number: int) -> None:
    words = Words(seed)
    wordings = whole(words, words.text(30), number)
    assert len(groups_of(wordings, beside=OTHERS)) == 1
    assert len(groups_of(wordings[::-1], beside=OTHERS[::-1])) == 1


@pytest.mark.waits
def test_the_simulation_finds_what_it_should_and_is_repeatable() -> None:
    few = Words(1, num_others=40)
    measured = [*quotations(few, 1), *templates(few, 1), *unrelated(Words(1), 1), *splits(Words(1), 1)]
    assert [row for row in measured if row.is_wrong] == [] and len(measured) > 70
    assert Row("texts", 5, 0.9, 1.0).is_wrong and not Row("texts", 5, 0.9, None).is_wrong
    assert list(unrelated(Words(1), 1)) == [row for row in measured if row.setting == "nothing in common"]
    assert list(table([Row("texts", 2000, 0.005, None)]))[-1] == "| texts | 2,000 | 0.5% | cannot tell |"
