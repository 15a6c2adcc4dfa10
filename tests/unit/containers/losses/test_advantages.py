"""Advantages are what a policy learns from: noise must give none, and what takes no part must be in no mean."""

import pytest
import torch
from torch import Tensor

from containers.losses.advantages import (
    GROUP_ADVANTAGES,
    batch_spread,
    group,
    group_spread,
    has_spread,
    leave_one_out,
)

pytestmark = pytest.mark.stages


def all_of(rewards: Tensor) -> Tensor:
    return torch.ones_like(rewards, dtype=torch.bool)


def test_the_examples_of_the_docstrings() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.5]])
    everyone = all_of(rewards)
    assert leave_one_out(rewards, everyone).tolist() == [[0.75, -0.75, 0.0]]
    assert group(rewards, everyone).tolist() == [[0.5, -0.5, 0.0]]
    torch.testing.assert_close(group_spread(rewards, everyone), torch.tensor([[1.0, -1.0, 0.0]]), atol=3e-4, rtol=0)
    torch.testing.assert_close(batch_spread(torch.tensor([1.0, 1, 3, 3])), torch.tensor([-1.0, -1, 1, 1]))


@pytest.mark.parametrize("name", GROUP_ADVANTAGES)
def test_they_sum_to_zero_in_each_group_and_each_group_stands_alone(name: str) -> None:
    torch.manual_seed(0)
    rewards = torch.randn(5, 4, dtype=torch.float64)
    found = GROUP_ADVANTAGES[name](rewards, all_of(rewards))
    assert float(found.sum(dim=1).abs().max()) < 1e-12
    alone = GROUP_ADVANTAGES[name](rewards[2:3], all_of(rewards[2:3]))
    torch.testing.assert_close(found[2:3], alone)


@pytest.mark.parametrize("name", GROUP_ADVANTAGES)
def test_one_that_takes_no_part_has_none_and_changes_no_sibling(name: str) -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.5, 1e6]])
    takes_part = torch.tensor([[True, True, True, False]])
    found = GROUP_ADVANTAGES[name](rewards, takes_part)
    assert found[0, 3] == 0
    torch.testing.assert_close(found[:, :3], GROUP_ADVANTAGES[name](rewards[:, :3], takes_part[:, :3]))
    none = torch.zeros_like(takes_part)
    assert GROUP_ADVANTAGES[name](rewards, none).tolist() == [[0.0] * 4]
    only_one = torch.tensor([[True, False, False, False]])
    assert GROUP_ADVANTAGES[name](rewards, only_one).tolist() == [[0.0] * 4]


def test_noise_as_large_as_the_rounding_gives_no_advantage_although_a_group_is_divided_by_its_spread() -> None:
    rewards = torch.tensor([[1.0, 1.001, 1.0, 1.0], [1.0, 2.0, 1.0, 1.0]])
    loud = group_spread(rewards, all_of(rewards))
    assert float(loud[0].abs().max()) > 1
    found = group_spread(rewards, all_of(rewards), rounding=0.002)
    assert found[0].tolist() == [0.0] * 4
    torch.testing.assert_close(found[1], loud[1])
    assert has_spread(rewards, all_of(rewards), rounding=0.002).tolist() == [False, True]


def test_equal_values_of_a_batch_have_no_advantage() -> None:
    assert batch_spread(torch.full((5,), 0.1)).abs().max() < 1e-6
