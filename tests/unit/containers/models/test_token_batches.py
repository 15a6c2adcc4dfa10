"""Tokens made together must be the tokens made one by one: the model is judged and used on the latter."""

import pytest

from containers.models.token_batches import tokens_of_all
from containers.scoring.scorer import conversation_tokens
from tests.unit.factories.tiny_policy import tiny_tokenizer

pytestmark = pytest.mark.stages

CONVERSATIONS = [
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"{number} naïve 日本 <|im_end|> questions\n" * (number % 7 + 1)},
        *([{"role": "assistant", "content": " Yes. "}, {"role": "user", "content": "Why?"}] if number % 3 else []),
    ]
    for number in range(1100)
]


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 1100])
def test_each_conversation_has_the_tokens_that_it_has_alone(count: int) -> None:
    tokenizer = tiny_tokenizer()
    alone = [conversation_tokens(tokenizer, conversation) for conversation in CONVERSATIONS[:count]]
    assert tokens_of_all(tokenizer, CONVERSATIONS[:count]) == alone


def test_a_generation_prompt_is_added_where_asked_for() -> None:
    tokenizer = tiny_tokenizer()
    plain = tokens_of_all(tokenizer, CONVERSATIONS[:3])
    asked = tokens_of_all(tokenizer, CONVERSATIONS[:3], add_generation_prompt=True)
    ends = [tokenizer.decode(longer[len(shorter) :]) for shorter, longer in zip(plain, asked, strict=True)]
    assert [longer[: len(shorter)] for shorter, longer in zip(plain, asked, strict=True)] == plain
    assert ends == ["<|im_start|>assistant\n"] * 3
