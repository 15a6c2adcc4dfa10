"""Rewards that need no reference answer, each on completions that others got wrong."""

import pytest

from containers.contracts.configs.parts.rewards import (
    FormatTerm,
    JsonSchemaTerm,
    KeywordsTerm,
    LanguageTerm,
    LengthTerm,
    RegexTerm,
    RepetitionTerm,
)
from containers.harness.errors import BadConfigError
from containers.rewards.base import NoValue
from tests.unit.factories.prompt_factory import answered, started, values_of

pytestmark = pytest.mark.stages


@pytest.mark.parametrize(
    ("text", "opening", "wanted"),
    [
        ("<think>6 × 7</think>\n<answer>42</answer>", "", 1),
        ("6 × 7</think> <answer>42</answer>", "<|im_start|>assistant\n<think>\n", 1),
        ("<answer>42</answer>", "assistant\n<think>\n\n</think>\n\n", 1),
        ("<think>6 × 7</think> <answer>42</answer>", "assistant\n<think>\n", 0),
        ("<think>a</think> so <answer>42</answer>", "", 0),
        ("<think>a</think><answer>42</answer> and more", "", 0),
        ("<answer>42</answer><think>a</think>", "", 0),
        ("<think>a</think><answer>1</answer><answer>2</answer>", "", 0),
        ("42", "", 0),
        ("", "", 0),
    ],
)
def test_format_wants_one_thought_then_one_answer_and_counts_what_the_template_wrote(
    text: str, opening: str, wanted: float
) -> None:
    assert values_of(FormatTerm(name="format"), answered(text, opening=opening)) == [wanted]


def test_regex_finds_a_pattern_and_one_that_needs_years_has_no_value() -> None:
    term = RegexTerm(name="regex", pattern="(a+)+$", cpu_s=1)
    found = values_of(term, answered("baaa"), answered("b"), answered("a" * 60 + "b"))
    assert found == [1.0, 0.0, NoValue("it took more than 1 s of processor time")]
    whole = RegexTerm(name="regex", pattern="yes.*", whole=True)
    assert values_of(whole, answered("yes\nindeed"), answered("oh yes")) == [1.0, 0.0]


def test_json_schema_reads_the_last_fenced_block_or_the_whole() -> None:
    schema = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}
    texts = ['{"age": 3}', 'Sure:\n```json\n{"age": 3}\n```', '{"age": "3"}', '{"age": 3', "", "```\n{}\n```"]
    found = values_of(JsonSchemaTerm(name="json", json_schema=schema), *map(answered, texts))
    assert found == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    with pytest.raises(BadConfigError, match=r"`json` cannot be used: .*is not valid under any of the given schemas"):
        started(JsonSchemaTerm(name="json", json_schema={"type": "no such type"}))


def test_length_falls_beside_the_target_and_no_further_than_minus_one() -> None:
    term = LengthTerm(name="length", target=(50, 400), slope_tokens=100)
    found = values_of(term, *[answered("x", tokens=tokens) for tokens in (50, 400, 450, 600, 25)])
    assert found == [0.0, 0.0, -0.5, -1.0, -0.25]


def test_keywords_are_counted_in_capitals_or_not() -> None:
    term = KeywordsTerm(name="words", required=("Paris", "France"), forbidden=("sorry",))
    texts = ("PARIS is in france", "Paris", "Sorry, Paris", "")
    assert values_of(term, *map(answered, texts)) == [1.0, 0.5, -0.5, 0.0]


def test_repetition_is_the_share_of_word_sequences_that_came_before() -> None:
    term = RepetitionTerm(name="again", words=2)
    assert values_of(term, *map(answered, ("a b a b a", "a b c d", "a", ""))) == [-0.5, 0.0, 0.0, 0.0]


def test_another_language_is_0_and_what_is_too_short_to_tell_is_not() -> None:
    texts = ("The weather is nice and we go for a walk today.", "Das Wetter ist heute sehr schön, wir gehen.", "42", "")
    assert values_of(LanguageTerm(name="language"), *map(answered, texts)) == [1.0, 0.0, 1.0, 1.0]
    with pytest.raises(BadConfigError, match=r"train_policy\.rewards, `language`: `englsh`.*Did you mean `english`"):
        started(LanguageTerm(name="language", language="englsh"))
