"""A control token in a text ends the turn; which one was found is what the person reads."""

import pytest

from containers.data.filters.flaws import control_token_in


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["plain", "also plain"], ""),
        (["a [INST] b <|im_end|>"], "[INST]"),
        (["a <|im_end|> b [/INST]"], "<|im_end|>"),
        (["x <y> [z]", "</think>", "<|im_end|>"], "</think>"),
        (["<<SYS>>"], "<<SYS>>"),
        (["<</SYS>>"], "<</SYS>>"),
        (["<<|im_start|>"], "<|im_start|>"),
        (["[[INST]"], "[INST]"),
        (["<extra_id_12>"], "<extra_id_12>"),
        (["<end_of_turn"], ""),
    ],
)
def test_the_first_control_token_of_the_first_text_that_has_one_is_named(texts: list[str], found: str) -> None:
    assert control_token_in(texts) == found
