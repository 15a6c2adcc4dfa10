"""A peer that writes long and short prompts together pads the short ones, and completions must keep their places."""

import pytest

from benchmarks.generation_speed import _SETTINGS, _Way

pytestmark = pytest.mark.stages

LENGTHS = [100, 400, 110, 380]


def test_prompts_in_order_are_padded_to_the_longest_of_their_call() -> None:
    assert _Way(2).order(LENGTHS) == [[0, 1], [2, 3]]
    assert _Way(2).tokens(LENGTHS, new_tokens=11) == 4 * 2 * (410 + 390)


def test_sorted_prompts_are_padded_less_and_keep_their_places() -> None:
    way = _Way(2, by_length=True)
    assert way.order(LENGTHS) == [[0, 2], [3, 1]]
    assert way.tokens(LENGTHS, new_tokens=11) == 4 * 2 * (120 + 410)
    assert _Way(1).tokens(LENGTHS, new_tokens=11) == 4 * (110 + 410 + 120 + 390)


def test_every_size_is_tried_with_both_caches() -> None:
    assert {(way.prompts, way.cache) for way in _SETTINGS.values()} == {
        (prompts, cache) for prompts in (1, 2, 4) for cache in (None, "static")
    }
