"""Packed rows give the scores of single conversations, compute what is shared once, and stay in their bounds."""

import random
from typing import Any

import pytest
import torch

from containers.packing import scoring as packed_scoring
from containers.packing.attention import packed
from containers.packing.scoring import computed_tokens, packed_rows, score_rows, shared_groups, why_padded
from containers.packing.trees import lay_out
from containers.packing_traits import PLAIN
from containers.scoring.scorer import RewardScorer
from tests.unit.containers.algorithms.test_packing import model
from tests.unit.factories.tiny_policy import tiny_tokenizer

pytestmark = pytest.mark.stages


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(5, 64) for _ in range(count)]


def conversations(*, prompts: int = 6, answers: int = 3, seed: int = 0) -> list[list[int]]:
    """Answers to prompts of unlike length, shuffled."""
    rng = random.Random(seed)  # noqa: S311
    found = []
    for _ in range(prompts):
        prompt = ids(rng, rng.randint(1, 40))
        found += [prompt + ids(rng, rng.randint(1, 12)) for _ in range(answers)]
    rng.shuffle(found)
    return found


def single_scores(asked: Any, sequences: list[list[int]]) -> list[float]:
    """By nothing but the model, one conversation at a time."""
    with torch.no_grad():
        return [float(asked(input_ids=torch.tensor([tokens])).logits[0, 0]) for tokens in sequences]


def scorer(family: str = "qwen3", **settings: Any) -> RewardScorer:
    tokenizer = tiny_tokenizer()
    return RewardScorer(model(family, settings), tokenizer, max_length=200, batch_size=8, batch_tokens=120)


def test_answers_to_one_prompt_are_one_group() -> None:
    prompt, other = [7] * 20, [8] * 20
    sequences = [[*prompt, 1], [*other, 1], [*prompt, 2, 3], [9], [*prompt, 4]]
    groups = {frozenset(group) for group in shared_groups(sequences, max_items=8, max_tokens=500)}
    assert groups == {frozenset({0, 2, 4}), frozenset({1}), frozenset({3})}


def test_a_short_beginning_that_all_share_parts_no_answers_from_their_prompt() -> None:
    start = [1, 2, 3]
    sequences = [
        [*start, 4],
        [*start, *[5] * 50, 6],
        [*start, *[5] * 50, 7],
        [*start, *[6] * 50, 6],
        [*start, *[6] * 50, 8],
    ]
    groups = {frozenset(group) for group in shared_groups(sequences, max_items=8, max_tokens=500)}
    assert {frozenset({1, 2}), frozenset({3, 4})} <= groups


@pytest.mark.parametrize(
    ("max_items", "max_tokens", "sizes"),
    [(8, 23, [3]), (8, 22, [1, 2]), (8, 5, [1, 2]), (3, 100, [3]), (2, 100, [1, 2]), (1, 100, [1, 1, 1])],
)
def test_a_group_stays_within_its_bounds_but_two_answers_may_share_a_longer_prompt(
    max_items: int, max_tokens: int, sizes: list[int]
) -> None:
    """A prompt of 20 tokens with three answers of one token are 23 tokens, with two of them 22."""
    sequences = [[*[7] * 20, answer] for answer in (1, 2, 3)]
    groups = shared_groups(sequences, max_items=max_items, max_tokens=max_tokens)
    assert sorted(map(len, groups)) == sizes
    assert [computed_tokens(sequences[:count]) for count in (1, 2, 3)] == [21, 22, 23]


@pytest.mark.parametrize("seed", range(5))
def test_no_other_stretches_of_the_sorted_order_save_more(seed: int) -> None:
    sequences = conversations(prompts=3, answers=3, seed=seed)
    groups = shared_groups(sequences, max_items=4, max_tokens=10_000)
    order = sorted(range(len(sequences)), key=lambda place: sequences[place])

    def saving(stretch: list[int]) -> int:
        members = [sequences[place] for place in stretch]
        rows = zip(*members, strict=False)
        alike = next((count for count, row in enumerate(rows) if len(set(row)) > 1), min(map(len, members)))
        return min(alike, min(map(len, members)) - 1) * (len(members) - 1)

    def best(start: int) -> int:
        if start == len(order):
            return 0
        ends = range(start + 1, min(start + 4, len(order)) + 1)
        return max(saving(order[start:end]) + best(end) for end in ends)

    assert sum(saving(group) for group in groups) == best(0)
    assert sorted(place for group in groups for place in group) == list(range(len(sequences)))


def test_rows_stay_within_their_bounds() -> None:
    sequences = conversations()
    groups = shared_groups(sequences, max_items=4, max_tokens=90)
    rows = packed_rows(sequences, groups, max_items=4, max_tokens=90)
    assert max(sum(len(group) for group in row) for row in rows) <= 4
    assert sorted(place for row in rows for group in row for place in group) == list(range(len(sequences)))


def test_a_row_is_filled_up_to_both_of_its_bounds() -> None:
    sequences = [[1] * 5, [2] * 3, [3] * 2, [4] * 2]
    groups = [[0], [1], [2], [3]]

    def found(*, max_items: int, max_tokens: int) -> list[list[int]]:
        rows = packed_rows(sequences, groups, max_items=max_items, max_tokens=max_tokens)
        return [[place for group in row for place in group] for row in rows]

    assert found(max_items=9, max_tokens=12) == [[0, 1, 2, 3]]
    assert found(max_items=9, max_tokens=10) == [[0, 1, 2], [3]]
    assert found(max_items=2, max_tokens=12) == [[0, 1], [2, 3]]


def test_packed_scores_are_those_of_single_conversations() -> None:
    asked, sequences = model("qwen3", {}), conversations()
    asked.eval()
    groups = shared_groups(sequences, max_items=8, max_tokens=200)
    rows = packed_rows(sequences, groups, max_items=8, max_tokens=200)
    found = score_rows(asked, asked.score.weight, [[[sequences[place] for place in g] for g in row] for row in rows])
    places = [place for row in rows for group in row for place in group]
    assert found == pytest.approx(single_scores(asked, [sequences[place] for place in places]), abs=1e-4)
    assert any(len(group) > 1 for group in groups)


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("qwen3", {}, ""),
        ("mistral", {"sliding_window": 16}, "window of 16 tokens"),
        (
            "gemma2",
            {"attn_logit_softcapping": 1.0, "query_pre_attn_scalar": 8, "sliding_window": 4096},
            "caps its logits",
        ),
    ],
)
def test_the_scorer_packs_what_can_be_packed_and_its_scores_are_the_models(
    family: str, settings: dict[str, Any], reason: str
) -> None:
    found, sequences = scorer(family, **settings), conversations()
    scores = found.score_tokens(sequences)
    assert reason in found.padded_since
    assert bool(found.padded_since) is bool(reason)
    assert scores == pytest.approx(single_scores(found.model, sequences), abs=1e-4)


def test_a_model_whose_configuration_says_nothing_shows_it_when_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_scoring, "packing_traits", lambda content: PLAIN)
    found = scorer("gemma2", attn_logit_softcapping=1.0, query_pre_attn_scalar=8, sliding_window=4096)
    scores = found.score_tokens(conversations())
    assert "from packed rows differ by" in found.padded_since
    assert scores == pytest.approx(single_scores(found.model, conversations()), abs=1e-4)


def test_equal_and_contained_conversations_have_their_own_scores() -> None:
    found = scorer()
    sequences = [[5, 6, 7], [5, 6, 7], [5, 6], [5], [5, 6, 7, 8]]
    assert found.score_tokens(sequences) == pytest.approx(single_scores(found.model, sequences), abs=1e-4)
    assert not found.padded_since


def test_the_attention_is_the_models_own_again_afterwards() -> None:
    found = scorer()
    before = found.model.config._attn_implementation
    found.score_tokens(conversations())
    assert found.model.config._attn_implementation == before


def test_a_window_as_long_as_every_conversation_hinders_nothing() -> None:
    asked = model("mistral", {"sliding_window": 200})
    assert why_padded(asked, max_length=200) == ""
    assert "window" in why_padded(asked, max_length=201)


def test_a_packed_row_keeps_no_keys_and_values_for_a_next_token() -> None:
    asked = model("qwen3", {})
    row = lay_out([[[5, 6, 7], [5, 6, 8]]])
    with packed(asked), torch.no_grad():
        assert asked(**row.given(asked.device)).past_key_values is None
