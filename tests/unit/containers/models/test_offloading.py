"""A frozen model in host memory computes what it computes on its device, and is there only while it is used."""

import pytest
import torch
from torch import nn

from containers.models.offloading import offload, present


def test_weights_come_for_a_while_and_go_and_whatever_shares_them_comes_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)).requires_grad_(False)
    sharing = nn.Sequential(model[0], nn.Linear(8, 2))
    given = torch.randn(3, 4)
    wanted = model(given)
    own = model[0].weight.data
    assert offload(model) == (4 * 8 + 8 + 8 + 1) * 4
    at_home = model[0].weight.data_ptr()
    assert at_home != own.data_ptr()
    with present(sharing):
        here = model[0].weight.data_ptr()
        assert here != at_home
        with present(model):
            assert model[0].weight.data_ptr() == here, "it is not copied twice"
            assert torch.equal(model(given), wanted)
        assert model[0].weight.data_ptr() == here, "the first user still needs it"
    assert model[0].weight.data_ptr() == at_home
    with present(nn.Linear(2, 2)):
        assert model[0].weight.data_ptr() == at_home


def test_weights_go_back_after_a_failure() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    offload(model)
    at_home = model.weight.data_ptr()
    with pytest.raises(RuntimeError, match="shapes"), present(model):
        model(torch.zeros(1, 3))
    assert model.weight.data_ptr() == at_home


def test_what_is_trained_is_not_offloaded() -> None:
    with pytest.raises(ValueError, match="is trained cannot be offloaded"):
        offload(nn.Linear(2, 2))
