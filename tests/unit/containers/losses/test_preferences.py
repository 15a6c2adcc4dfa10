"""The losses on pairs by numbers reckoned by hand; test_offline_peers holds their gradients against TRL."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from containers.contracts.configs.parts.preference_losses import PREFERENCE_LOSSES, PreferenceLoss
from containers.losses.likelihood import negative_log_likelihood
from containers.losses.preferences import OBJECTIVES, Pairs, figures, likelihood, margins

pytestmark = pytest.mark.stages


def pair(chosen: float, rejected: float, **more: Any) -> Pairs:
    """One pair, of completions of 5 and 4 tokens; without reference unless given."""
    values = {"reference_chosen": 0.0, "reference_rejected": 0.0, "chosen_tokens": 5, "rejected_tokens": 4, **more}
    baseline = values.pop("kl_baseline", 0.0)
    tensors = {name: torch.tensor([value], dtype=torch.float64) for name, value in values.items()}
    return Pairs(
        chosen=torch.tensor([chosen], dtype=torch.float64, requires_grad=True),
        rejected=torch.tensor([rejected], dtype=torch.float64, requires_grad=True),
        kl_baseline=baseline,
        **tensors,
    )


def parts(name: str, **changes: Any) -> PreferenceLoss:
    return PREFERENCE_LOSSES[name].model_copy(update=changes)


def value(name: str, pairs: Pairs, **changes: Any) -> float:
    own = parts(name, **changes)
    found: Tensor = OBJECTIVES[own.objective](pairs, own)
    assert found.shape == (1,)
    return float(found.detach())


def test_a_margin_is_of_sums_or_of_means_and_relative_to_the_reference() -> None:
    assert float(margins(pair(-10, -12), parts("sigmoid")).detach()) == 2
    assert float(margins(pair(-10, -12), parts("simpo")).detach()) == pytest.approx(1)
    referred = pair(-10, -12, reference_chosen=-11.0, reference_rejected=-15.0)
    assert float(margins(referred, parts("sigmoid")).detach()) == -2


def test_losses_of_a_pair_by_hand() -> None:
    sigma = 1 / (1 + math.exp(-0.2))
    pairs = pair(-10, -12)
    assert value("sigmoid", pair(-10, -10)) == pytest.approx(math.log(2))
    assert value("sigmoid", pairs) == pytest.approx(-math.log(sigma))
    smoothed = -0.9 * math.log(sigma) - 0.1 * math.log(1 - sigma)
    assert value("sigmoid", pairs, label_smoothing=0.1) == pytest.approx(smoothed)
    assert value("robust", pairs) == pytest.approx((-0.9 * math.log(sigma) + 0.1 * math.log(1 - sigma)) / 0.8)
    assert value("hinge", pairs) == pytest.approx(0.8)
    assert value("ipo", pairs) == pytest.approx((1 - 5) ** 2)
    assert value("sft", pairs) == 0  # the likelihood of the chosen completion is all of it
    # β 2 × a margin of 1 a token, less γ 1.
    assert value("simpo", pairs) == pytest.approx(math.log(1 + math.exp(-1)))


def test_kto_weighs_a_completion_by_how_far_it_is_from_the_baseline() -> None:
    at_baseline = pair(-7, -7, reference_chosen=-10.0, reference_rejected=-10.0, kl_baseline=3.0)
    assert value("kto", at_baseline) == pytest.approx(0.5)
    better = pair(-5, -9, reference_chosen=-10.0, reference_rejected=-10.0, kl_baseline=3.0)
    assert value("kto", better) == pytest.approx(1 - 1 / (1 + math.exp(-0.2)))


def test_orpo_compares_odds_also_of_a_completion_that_is_certain_or_hopeless() -> None:
    half, quarter = 5 * math.log(0.5), 4 * math.log(0.25)
    # Odds of 1 and 1/3.
    assert value("orpo", pair(half, quarter)) == pytest.approx(-0.1 * math.log(3 / 4))
    for extreme in (pair(0.0, -4000.0), pair(-4000.0, 0.0)):
        loss = OBJECTIVES["orpo"](extreme, parts("orpo")).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        assert math.isfinite(float(loss.detach()))
        assert extreme.chosen.grad is not None and bool(extreme.chosen.grad.isfinite().all())


def test_the_likelihood_is_per_token_of_the_whole_step() -> None:
    assert float(likelihood(pair(-10, -12), parts("orpo"), chosen_tokens=20).detach()) == 0.5
    assert float(negative_log_likelihood(torch.tensor([-3.0, -5.0]), num_tokens=4)) == 2
    assert float(negative_log_likelihood(torch.tensor([0.0]), num_tokens=0)) == 0


def test_figures_have_no_gradient_and_no_ratios_without_a_reference() -> None:
    found = figures(pair(-10, -12), parts("sigmoid"))
    assert {name: float(one) for name, one in found.items()} == pytest.approx(
        {
            "accuracy": 1.0,
            "margin": 0.2,
            "chosen_logps": -10.0,
            "rejected_logps": -12.0,
            "chosen_log_ratio": -10.0,
            "rejected_log_ratio": -12.0,
            "kl_on_pairs": -11.0,
        }
    )
    assert not any(one.requires_grad for one in found.values())
    assert set(figures(pair(-10, -12), parts("simpo"))) == {"accuracy", "margin", "chosen_logps", "rejected_logps"}
