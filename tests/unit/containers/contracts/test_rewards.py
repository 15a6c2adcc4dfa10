"""A list of rewards that cannot work is refused with a sentence, before anything is spent."""

from typing import Any

import pytest
from pydantic import ValidationError

from containers.contracts.configs.parts.rewards import reward_contradictions
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.programs import members_of
from containers.contracts.registries import REWARDS


def contradictions_of(*terms: dict[str, Any]) -> dict[str, str]:
    return dict(reward_contradictions(TrainPolicyConfig(rewards=terms).rewards))


LENGTH = {"type": "length", "target": (1, 10)}


def test_left_out_it_is_the_reward_model_alone_and_a_term_without_a_name_has_that_of_its_type() -> None:
    assert [term.name for term in TrainPolicyConfig().rewards] == ["reward_model"]
    config = TrainPolicyConfig(rewards=({"type": "math"}, {**LENGTH, "name": "short", "weight": 0.1}))
    assert [term.name for term in config.rewards] == ["math", "short"]
    assert not list(reward_contradictions(config.rewards))


@pytest.mark.parametrize(
    ("terms", "key", "text"),
    [
        ((LENGTH,), "rewards", "no term says which completions are right"),
        ((), "rewards", "an empty list"),
        (({"type": "math"}, {"type": "math"}), "rewards.1.name", "`math` is the name of another term"),
        (({"type": "math"}, {**LENGTH, "only_if": "exact"}), "rewards.1.only_if", "outcomes: math"),
        (({"type": "math"}, {"type": "exact", "only_if": "math"}), "rewards.1.only_if", "cannot depend"),
        (({"type": "math", "normalise": "running"},), "rewards.0.normalise", "is 1 or 0, and stays so"),
        (({"type": "math", "weight": 0},), "rewards.0.weight", "0: this term says what is right"),
        (({"type": "reward_model", "weight": -1},), "rewards.0.weight", "-1: this term says what is right"),
        (({"type": "reward_model"}, {"type": "reward_model", "name": "b"}), "rewards", "one reward model"),
    ],
)
def test_each_contradiction_names_its_key(terms: tuple[dict[str, Any], ...], key: str, text: str) -> None:
    assert text in contradictions_of(*terms)[key]


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ({"type": "regex", "pattern": "("}, "is no regular expression"),
        ({"type": "length", "target": (10, 1)}, "wanted the fewest tokens, then the most"),
        ({"type": "keywords"}, "name required or forbidden texts"),
        ({"type": "python", "file": "own.txt"}, "pattern"),
        ({"type": "beauty"}, "'reward_model', 'math', 'exact'"),
    ],
)
def test_a_term_that_makes_no_sense_alone_is_refused(term: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        TrainPolicyConfig(rewards=(term,))


def test_the_stage_depends_on_the_rewards_that_it_names_alone() -> None:
    config = TrainPolicyConfig(rewards=({"type": "math"}, LENGTH, {**LENGTH, "name": "other"}))
    found = [module for module in members_of(config) if ".rewards." in module]
    assert found == ["containers.rewards.math", "containers.rewards.length"]
    assert all(REWARDS.module_of(name) == f"containers.rewards.{name}" for name in REWARDS)
