"""Advantages of single tokens come from sums over what follows; a mistake there trains on noise, and no curve shows."""

import random
from itertools import chain

import pytest
import torch
from torch import Tensor

from containers.losses.values import discounted, explained_variance, gae, value_error

pytestmark = pytest.mark.stages


def one(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float)


def test_docstring_examples() -> None:
    assert discounted(one(0, 0, 1, 2), torch.tensor([3, 1]), discount=0.5).tolist() == [0.25, 0.5, 1, 2]
    assert gae(one(0, 1), one(0.5, 0.5), torch.tensor([2]), discount=1.0, trace=1.0).tolist() == [0.5, 0.5]
    error, is_clipped = value_error(one(2), one(1), one(3), clip=0.5)
    assert (error.tolist(), is_clipped.tolist()) == ([1.125], [True])
    assert explained_variance(one(1, 2), one(1, 3)) == pytest.approx(0.75)


def written_out(
    rewards: list[float], values: list[float], *, discount: float, trace: float, last: float
) -> list[float]:
    """Eq. 16 of arXiv:1506.02438, term by term: the sum over l of (γλ)^l × δ at t + l."""
    after = [*values[1:], last]
    errors = [reward + discount * then - now for reward, then, now in zip(rewards, after, values, strict=True)]
    return [
        sum((discount * trace) ** (later - place) * errors[later] for later in range(place, len(errors)))
        for place in range(len(errors))
    ]


@pytest.mark.parametrize(("discount", "trace"), [(1.0, 0.95), (0.99, 0.9), (0.5, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("bootstraps", [False, True])
def test_gae_is_its_sum_written_out_for_completions_of_any_lengths(
    discount: float, trace: float, bootstraps: bool
) -> None:
    dice = random.Random(3)  # noqa: S311
    lengths = [5, 1, 12, 3]
    rewards, values = ([[dice.gauss(0, 1) for _ in range(length)] for length in lengths] for _ in range(2))
    lasts = [dice.gauss(0, 1) if bootstraps else 0.0 for _ in lengths]
    wanted = [
        number
        for reward, value, last in zip(rewards, values, lasts, strict=True)
        for number in written_out(reward, value, discount=discount, trace=trace, last=last)
    ]
    found = gae(
        torch.tensor([*chain(*rewards)], dtype=torch.float64),
        torch.tensor([*chain(*values)], dtype=torch.float64),
        torch.tensor(lengths),
        discount=discount,
        trace=trace,
        last=torch.tensor(lasts) if bootstraps else None,
    )
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)


def test_nothing_gives_nothing() -> None:
    assert len(discounted(torch.zeros(0), torch.zeros(0, dtype=torch.long), discount=1.0)) == 0
    assert explained_variance(torch.zeros(0), torch.zeros(0)) == 0
    assert explained_variance(one(1, 2), one(5, 5)) == 0


def test_a_value_that_left_its_room_has_no_gradient_where_that_would_help_it() -> None:
    values = one(2.0, 0.9, 5.0).requires_grad_()
    error, is_clipped = value_error(values, one(1, 1, 1), one(3, 3, 3), clip=0.5)
    error.sum().backward()  # type: ignore[no-untyped-call]
    assert is_clipped.tolist() == [True, False, False]
    assert values.grad is not None
    # The third is beyond the return, where the error of the value itself is the larger one.
    assert values.grad.tolist() == pytest.approx([0.0, -2.1, 2.0])
    plain, none = value_error(values.detach(), one(1, 1, 1), one(3, 3, 3), clip=None)
    assert plain.tolist() == pytest.approx([0.5, 2.205, 2.0]) and not none.any()
