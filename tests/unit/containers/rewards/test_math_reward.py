"""An answer is right as a number or an expression, however it is written; and none can hold the training up."""

from collections.abc import Iterator

import pytest

from containers.contracts.configs.parts.rewards import ExactTerm, MathTerm
from containers.data.answers import written_answer
from containers.rewards.base import NoValue, Reward
from tests.unit.factories.prompt_factory import answered, started, values_of

pytestmark = pytest.mark.stages


@pytest.fixture(scope="module")
def reward() -> Iterator[Reward]:
    found = started(MathTerm(name="math", cpu_s=1))
    yield found
    found.close()


RIGHT = [
    ("The answer is 42", "42"),
    (r"\boxed{42}", "42"),
    ("6 × 7\n#### 42", "42"),
    ("<think>41?</think> <answer>42</answer>", "42"),
    ("42.0", "42"),
    ("1,234", "1234"),
    ("1 234", "1234"),
    ("−5", "-5"),
    (r"\boxed{\$18}", "18"),
    ("**18**.", "18"),
    (r"\boxed{\frac{1}{2}}", "0.5"),
    ("0.5", r"\frac{1}{2}"),
    (r"\boxed{(x+1)^2}", "x^2+2x+1"),
    (r"\boxed{2\sqrt{3}}", r"\sqrt{12}"),
    (r"first \boxed{41}, no, \boxed{42}", "42"),
    (r"\boxed{x=5}", "5"),
    (r"\boxed{\text{A}}", "A"),
    (r"<think>\boxed{41}? No.</think> It is 42.", "42"),
    (r"41, or so </think> So \boxed{42}", "42"),
]
WRONG = [
    ("", "42"),
    ("I do not know.", "42"),
    ("<think>42</think>", "42"),
    ("<think>42</think> <answer>41</answer>", "42"),
    (r"<think>\boxed{42}</think> \boxed{41}", "42"),
    (r"<think>It must be \boxed{42}, but", "42"),
    (r"\boxed{42} and then \boxed{41}", "42"),
    (r"\boxed{42", "42"),
    ("0.33", r"\frac{1}{3}"),
    ("((((" * 500 + "41", "42"),
    (r"\frac{" * 200 + "42", "42"),
    ("9" * 3000, "42"),
]


def test_the_same_number_written_in_another_way_is_right(reward: Reward) -> None:
    found = reward.values([answered(text, answer) for text, answer in RIGHT])
    assert [case for case, value in zip(RIGHT, found, strict=True) if value != 1.0] == []


def test_another_number_or_none_is_wrong(reward: Reward) -> None:
    found = reward.values([answered(text, answer) for text, answer in WRONG])
    assert [(case, value) for case, value in zip(WRONG, found, strict=True) if value != 0.0] == []


def test_each_of_several_accepted_answers_is_right_and_one_that_cannot_be_read_stops_none(reward: Reward) -> None:
    rows = [
        answered(text, "0.01", other_answers=("0.02", "x =")) for text in ("0.01", r"\boxed{\frac{1}{50}}", "0.03", "")
    ]
    assert reward.values(rows) == [1.0, 1.0, 0.0, 0.0]
    exact = values_of(ExactTerm(name="exact"), *(answered(text, "A", other_answers=("b c",)) for text in ("B  C", "c")))
    assert exact == [1.0, 0.0]


def test_a_number_that_takes_for_ever_has_no_value_and_the_next_ones_are_read(reward: Reward) -> None:
    texts = ["42", "5^5^5^5^5", r"\boxed{10^{100000000}}", "42", "41"]
    found = reward.values([answered(text, "42") for text in texts])
    late = NoValue("it took more than 1 s of processor time")
    assert found == [1.0, late, late, 1.0, 0.0]


def test_without_a_readable_reference_answer_there_is_no_value(reward: Reward) -> None:
    assert reward.values([answered("42", None)]) == [NoValue("the prompt has no reference answer")]
    unreadable = NoValue("the reference answer is no number, expression or word")
    for gold in ("x =", "{{", r"\frac{", "}"):
        assert reward.values([answered(rf"\boxed{{{gold}}}", gold)]) == [unreadable], gold


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<answer>a</answer> <answer> b </answer>", "b"),
        ("x #### 1\ny #### 2", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"<answer>\boxed{7}</answer>", "7"),
        ("  plain  ", "plain"),
    ],
)
def test_the_written_answer_is_the_last_that_is_marked(text: str, wanted: str) -> None:
    assert written_answer(text) == wanted


@pytest.mark.parametrize(
    ("text", "ignore_case", "wanted"),
    [
        ("<answer>Paris</answer>", True, 1.0),
        ("paris", False, 0.0),
        ("It is Paris", True, 0.0),
        ("new  york", True, 0.0),
    ],
)
def test_exact_compares_letters(text: str, ignore_case: bool, wanted: float) -> None:
    term = ExactTerm(name="exact", ignore_case=ignore_case)
    assert values_of(term, answered(text, "Paris"), answered("a  b", "A b")) == [wanted, float(ignore_case)]
