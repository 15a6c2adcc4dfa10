"""A step waits for its slowest rank, so its examples are dealt to ranks by their tokens; the step stays the same."""

import random
import statistics

import pytest
from accelerate.data_loader import SeedableRandomSampler

from containers.packing.dealing import DealtOrder, dealt, dealt_families

pytestmark = pytest.mark.stages


def _slowest(sizes: list[int], order: list[int], *, num_ranks: int) -> float:
    """Tokens of the rank that has most, over the mean."""
    share = len(order) // num_ranks
    of_ranks = [sum(sizes[place] for place in order[rank * share : (rank + 1) * share]) for rank in range(num_ranks)]
    return max(of_ranks) / statistics.fmean(of_ranks)


@pytest.mark.parametrize(("num_ranks", "of_a_rank"), [(8, 16), (7, 16), (4, 24)])
def test_ranks_get_equally_many_examples_and_nearly_equal_tokens(num_ranks: int, of_a_rank: int) -> None:
    dice, as_drawn, by_tokens = random.Random(7), [], []  # noqa: S311
    for _ in range(50):
        sizes = [min(2048, int(dice.lognormvariate(6.6, 0.45))) for _ in range(num_ranks * of_a_rank)]
        order = dealt(sizes, num_ranks=num_ranks)
        assert order is not None and sorted(order) == list(range(len(sizes)))
        as_drawn.append(_slowest(sizes, list(range(len(sizes))), num_ranks=num_ranks))
        by_tokens.append(_slowest(sizes, order, num_ranks=num_ranks))
    assert statistics.fmean(as_drawn) > 1.07
    assert statistics.fmean(by_tokens) < 1.006


def test_one_rank_keeps_the_order_and_a_remainder_cannot_be_dealt() -> None:
    assert dealt([3, 9, 1], num_ranks=1) == [0, 1, 2]
    assert dealt([3, 9, 1], num_ranks=2) is None
    assert dealt([5, 5], num_ranks=2, counts=[3, 1]) is None, "three stay together, and a rank has two"


def test_a_family_stays_together_unless_ranks_would_have_unequal_numbers() -> None:
    families = [[0, 1], [2, 3], [4], [5]]
    order = dealt_families(families, lambda family: 10 * len(family), num_ranks=3)
    parts = [set(order[start : start + 2]) for start in (0, 2, 4)]
    assert {0, 1} in parts and {2, 3} in parts
    split = dealt_families([[0, 1, 2], [3]], len, num_ranks=2)
    assert sorted(split) == [0, 1, 2, 3]


def test_a_dealt_epoch_has_the_steps_of_the_usual_one() -> None:
    sizes = [random.Random(place).randint(10, 900) for place in range(53)]  # noqa: S311
    for epoch in (0, 3):
        usual = SeedableRandomSampler(range(53), data_seed=11)
        usual.set_epoch(epoch)
        wanted = list(usual)
        order = DealtOrder(sizes, per_step=8, num_ranks=2, seed=11, epoch=lambda: epoch)  # noqa: B023
        found = list(order)
        assert len(order) == 53
        for start in range(0, 53, 8):
            assert sorted(found[start : start + 8]) == sorted(wanted[start : start + 8])
        assert found[48:] == wanted[48:], "what is no whole step is left as it is"


def test_no_rank_waits_long_in_a_dealt_epoch() -> None:
    dice = random.Random(3)  # noqa: S311
    sizes = [min(2048, int(dice.lognormvariate(6.6, 0.45))) for _ in range(1024)]
    order = list(DealtOrder(sizes, per_step=128, num_ranks=8, seed=5, epoch=lambda: 0))
    for start in range(0, 1024, 128):
        assert _slowest(sizes, order[start : start + 128], num_ranks=8) < 1.02
