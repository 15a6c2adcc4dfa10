"""A name of an algorithm means what its paper says; parts that cannot go together are refused with a sentence."""

from typing import Any

import pytest
from pydantic import ValidationError

from containers.contracts.configs.parts.policy_algorithms import POLICY_ALGORITHMS, contradictions
from containers.contracts.configs.train_policy import TrainPolicyConfig


@pytest.mark.parametrize("name", POLICY_ALGORITHMS)
def test_no_algorithm_contradicts_itself_with_or_without_a_kl(name: str) -> None:
    for beta in (None, 0.0, 0.1):
        method = TrainPolicyConfig(algorithm=name, beta=beta).method
        assert not list(contradictions(method, num_generations=4))
        assert method.beta == (POLICY_ALGORITHMS[name].beta if beta is None else beta)


def test_dapo_is_all_four_parts_of_its_paper() -> None:
    dapo = POLICY_ALGORITHMS["dapo"]
    assert (dapo.clip_low, dapo.clip_high) == (0.2, 0.28)
    assert (dapo.refill, dapo.loss_weights, dapo.overlong_fraction, dapo.overlong_penalty) == (True, "token", 0.2, 1.0)


def test_single_parts_can_be_set_and_the_others_stay() -> None:
    method = TrainPolicyConfig(algorithm="dapo", parts={"refill": False, "clip_high": 0.3}).method
    assert method == POLICY_ALGORITHMS["dapo"].model_copy(update={"refill": False, "clip_high": 0.3})


@pytest.mark.parametrize(
    ("settings", "num_generations", "key", "words"),
    [
        ({"algorithm": "grpo"}, 1, "num_generations", "1 is too few: the advantage group_spread compares"),
        ({"algorithm": "reinforce++", "parts": {"refill": True}}, 1, "parts.refill", "none differ"),
        ({"algorithm": "gspo", "parts": {"loss_weights": "token"}}, 4, "parts.loss_weights", "by its length"),
        ({"algorithm": "cispo", "parts": {"ratio_over": "completion_mean", "loss_weights": "completion"}}, 4,
         "parts.objective", "capped weighs each token"),
        ({"algorithm": "grpo", "parts": {"kl_place": "token_reward", "kl_estimator": "k1"}}, 4, "parts.kl_place",
         "Use reward, or loss"),
        ({"algorithm": "reinforce++", "parts": {"kl_place": "reward"}}, 4, "parts.kl_place", "Use token_reward"),
        ({"algorithm": "rloo", "parts": {"kl_estimator": "k3"}}, 4, "parts.kl_estimator", "Use k1"),
        ({"algorithm": "grpo", "parts": {"overlong_penalty": 1.0}}, 4, "parts.overlong_fraction", "set both"),
        ({"algorithm": "dapo", "parts": {"overlong_penalty": 0.0}}, 4, "parts.overlong_penalty", "set both"),
    ],
)  # fmt: skip
def test_parts_that_make_no_sense_together_are_refused(
    settings: dict[str, Any], num_generations: int, key: str, words: str
) -> None:
    found = dict(contradictions(TrainPolicyConfig(**settings).method, num_generations=num_generations))
    assert list(found) == [key]
    assert words in found[key]


def test_reinforce_plus_plus_needs_no_sibling() -> None:
    assert not list(contradictions(TrainPolicyConfig(algorithm="reinforce++").method, num_generations=1))


def test_completions_of_the_likeliest_tokens_alone_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"0\.9 would draw completions from the likeliest tokens alone"):
        TrainPolicyConfig(top_p=0.9)
