"""Weights without a cap let one completion decide a step; a KL that is none hides an engine that writes otherwise."""

import pytest
import torch

from containers.losses.importance import effective_share, importance_weights, sampling_kl
from containers.losses.ratios import TokenOwners

pytestmark = pytest.mark.stages


def test_docstring_examples() -> None:
    zeros, owners = torch.zeros(2), TokenOwners(torch.tensor([0, 0]), 1)
    assert float(sampling_kl(torch.tensor(2.0).log(), torch.zeros(()))) == pytest.approx(0.3069, abs=1e-4)
    weights = importance_weights(torch.tensor([1.5, 3.0]).log(), zeros, owners, over="token", cap=2.0)
    assert weights.tolist() == pytest.approx([1.5, 2.0])
    assert effective_share(4.0, 10.0, 2) == pytest.approx(0.8)


def test_a_whole_completion_has_the_product_of_its_tokens_ratios() -> None:
    logps, owners = torch.tensor([1.2, 1.5, 0.5]).log(), TokenOwners(torch.tensor([0, 0, 1]), 2)
    found = importance_weights(logps, torch.zeros(3), owners, over="completion", cap=9.0)
    assert found.tolist() == pytest.approx([1.8, 1.8, 0.5])
    assert importance_weights(logps, torch.zeros(3), owners, over="off", cap=2.0).tolist() == [1, 1, 1]


def test_the_mean_over_samples_is_the_kl_between_both() -> None:
    torch.manual_seed(3)
    sampling, policy = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    drawn = torch.multinomial(sampling, 200_000, replacement=True)
    found = sampling_kl(policy.log()[drawn], sampling.log()[drawn])
    kl = float((sampling * (sampling / policy).log()).sum())
    assert float(found.mean()) == pytest.approx(kl, rel=0.03) and float(found.min()) >= 0


def test_without_samples_nothing_is_lost() -> None:
    assert effective_share(0.0, 0.0, 0) == 1.0
