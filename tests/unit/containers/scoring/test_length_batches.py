import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.scoring.batches import length_batches

pytestmark = pytest.mark.stages

lengths = st.lists(st.integers(1, 300), max_size=60)


@given(lengths, st.integers(1, 9), st.none() | st.integers(1, 900))
def test_every_sequence_stands_in_one_batch_within_both_bounds(
    lengths: list[int], max_items: int, max_tokens: int | None
) -> None:
    batches = length_batches(lengths, max_items=max_items, max_tokens=max_tokens)
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    for batch in batches:
        width = max(lengths[place] for place in batch)
        assert 1 <= len(batch) <= max_items
        assert max_tokens is None or len(batch) == 1 or width * len(batch) <= max_tokens


@given(lengths)
def test_batches_go_from_long_to_short(lengths: list[int]) -> None:
    places = [place for batch in length_batches(lengths, max_items=4) for place in batch]
    assert [lengths[place] for place in places] == sorted(lengths, reverse=True)


def test_a_sequence_beyond_the_budget_is_a_batch_of_its_own() -> None:
    assert length_batches([5, 90, 4], max_items=8, max_tokens=20) == [[1], [0, 2]]
