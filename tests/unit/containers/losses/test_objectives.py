"""The parts of a loss: ratios, objectives, KL and weights, each by numbers that can be computed by hand."""

import math

import pytest
import torch

from containers.contracts.configs.parts.policy_algorithms import OBJECTIVES, POLICY_ALGORITHMS
from containers.losses.ratios import KL_ESTIMATORS, RATIOS, TokenOwners
from containers.losses.weights import WEIGHTS

pytestmark = pytest.mark.stages

# Two completions, of two tokens and of one.
OWNERS = TokenOwners.of_lengths((2, 1), torch.device("cpu"))
OLD = torch.tensor([0.1, 0.05, 0.5]).log()
LOGPS = torch.tensor([2.0, 8.0, 0.5]).log() + OLD


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("token", [2, 8, 0.5]), ("completion", [16, 16, 0.5]), ("completion_mean", [4, 4, 0.5])],
)
def test_ratios(name: str, wanted: list[float]) -> None:
    torch.testing.assert_close(RATIOS[name](LOGPS, OLD, OWNERS), torch.tensor(wanted))


def test_a_clipped_ratio_has_no_gradient_where_it_would_go_further() -> None:
    parts = POLICY_ALGORITHMS["dapo"]
    logps = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.25]).log().requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    values, is_limited = OBJECTIVES["clipped"](logps, logps.exp(), advantages, parts)
    torch.testing.assert_close(values.detach(), torch.tensor([-1.28, 1.5, -0.5, 0.8, -1.25]))
    assert is_limited.tolist() == [True, False, False, True, False]
    (gradient,) = torch.autograd.grad(values.sum(), logps)
    assert (gradient == 0).tolist() == is_limited.tolist()


def test_a_capped_ratio_is_a_weight_and_no_token_loses_its_gradient() -> None:
    parts = POLICY_ALGORITHMS["cispo"]
    assert parts.clip_high == 5
    logps = torch.tensor([7.0, 1.0, 0.1]).log().requires_grad_()
    values, is_limited = OBJECTIVES["capped"](logps, logps.exp(), torch.ones(3), parts)
    assert is_limited.tolist() == [True, False, False]
    (gradient,) = torch.autograd.grad(values.sum(), logps)
    torch.testing.assert_close(gradient, torch.tensor([-5.0, -1.0, -0.1]))


def test_a_soft_gate_is_no_gate_at_a_ratio_of_one_and_lets_less_through_the_further_it_is() -> None:
    ratio = torch.tensor([1.0, 3.0, 3.0, 0.2]).requires_grad_()
    advantages = torch.tensor([2.0, 1.0, -1.0, -1.0])
    values, is_limited = OBJECTIVES["soft"](ratio.log(), ratio, advantages, POLICY_ALGORITHMS["sapo"])
    (slope,) = torch.autograd.grad(values.sum(), ratio)
    torch.testing.assert_close(slope, torch.tensor([-2.0, -0.4200, 0.3888, 0.8424]), rtol=1e-3, atol=1e-3)
    assert not is_limited.any()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("k1", math.log(2)), ("k2", math.log(2) ** 2 / 2), ("k3", 0.5 - 1 + math.log(2))],
)
def test_estimators_of_the_kl_where_the_policy_is_twice_as_likely(name: str, wanted: float) -> None:
    found = KL_ESTIMATORS[name](torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)]))
    assert float(found) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_estimators_have_the_mean_that_the_kl_has(name: str) -> None:
    """Over two words, with the probabilities 0.9 and 0.6 of the first."""
    policy, reference = torch.tensor([0.9, 0.1]), torch.tensor([0.6, 0.4])
    mean = (policy * KL_ESTIMATORS[name](policy.log(), reference.log())).sum()
    assert float(mean) == pytest.approx(float((policy * (policy / reference).log()).sum()), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "wanted"), [("completion", [1 / 2, 1 / 6]), ("token", [1 / 4, 1 / 4]), ("constant", [1 / 8, 1 / 8])]
)
def test_weights(name: str, wanted: list[float]) -> None:
    torch.testing.assert_close(WEIGHTS[name](torch.tensor([1, 3]), 4), torch.tensor(wanted))
