"""Sorting helps a peer only if its tokens are counted and its scores come back in the order of the pairs."""

import pytest

from benchmarks.score_peers import REWARDBENCH, SETTINGS, TRL, Scores, Setting, by_length, padded_tokens
from benchmarks.speed_inputs import ConversationPair, random_pairs

pytestmark = pytest.mark.stages

TOKENS = [[[0] * 10, [0] * 20], [[0] * 100, [0] * 50], [[0] * 12, [0] * 18], [[0] * 90, [0] * 60]]


def test_padding_is_counted_as_each_peer_pads() -> None:
    assert padded_tokens(TOKENS, Setting(REWARDBENCH, 1)) == 360
    assert padded_tokens(TOKENS, Setting(TRL, 1)) == 2 * (20 + 100 + 18 + 90)
    assert padded_tokens(TOKENS, Setting(REWARDBENCH, 2)) == 2 * (100 + 50 + 90 + 60)
    assert padded_tokens(TOKENS, Setting(TRL, 2)) == 4 * (100 + 90)
    assert padded_tokens(TOKENS, Setting(TRL, 2, by_length=True)) == 4 * (20 + 100)


def test_sorted_pairs_get_their_own_scores_back() -> None:
    pairs = random_pairs(5, seed=3, prompt_tokens=(5, 80), answer_tokens=(5, 30))
    seen: list[int] = []

    def scored(ordered: list[ConversationPair]) -> Scores:
        seen.extend(max(_letters(side) for side in pair) for pair in ordered)
        return [float(_letters(side)) for pair in ordered for side in pair]

    assert by_length(pairs, scored) == [float(_letters(side)) for pair in pairs for side in pair]
    assert seen == sorted(seen)


def test_the_settings_have_the_defaults_and_sort_only_what_can_be_sorted() -> None:
    sizes = {(setting.peer, setting.size, setting.by_length) for setting in SETTINGS.values()}
    assert {(peer, 8, False) for peer in (REWARDBENCH, TRL)} < sizes
    assert not any(setting.by_length and setting.size == 1 for setting in SETTINGS.values())


def _letters(side: list[dict[str, str]]) -> int:
    return sum(len(turn["content"]) for turn in side)
