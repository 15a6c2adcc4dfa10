"""What packing cannot compute is read from a model's configuration: else its figures would be silently others."""

from typing import Any

import pytest

from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.packing_traits import packing_traits, why_completions_are_padded, why_pairs_are_padded

PAIRS = TrainRewardModelConfig()
POLICY = TrainPolicyConfig(max_prompt_length=60, max_completion_length=40)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, ""),
        ({"sliding_window": 100}, ""),
        ({"sliding_window": 99}, "window of 99 tokens"),
        ({"sliding_window": 99, "use_sliding_window": False}, ""),
        ({"sliding_window": 99, "layer_types": ["full_attention"]}, ""),
        ({"sliding_window": 99, "layer_types": ["full_attention", "sliding_attention"]}, "window of 99 tokens"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "no plain attention: linear_attention"),
        ({"attn_logit_softcapping": 50.0}, "its attention caps its logits"),
        ({"attn_logit_softcapping": None}, ""),
        ({"sliding_window": "a text that no configuration has"}, ""),
    ],
)
def test_attention_that_is_more_than_a_mask_is_named_for_pairs_and_completions(
    content: dict[str, Any], reason: str
) -> None:
    traits = packing_traits(content)
    for found in (
        why_pairs_are_padded(PAIRS, traits, longest=100),
        why_completions_are_padded(POLICY, traits),  # of at most 60 + 40 tokens
        why_completions_are_padded(TrainSftConfig(max_length=100), traits),
        why_completions_are_padded(TrainDpoConfig(max_length=100), traits),
    ):
        assert reason in found
        assert bool(found) is bool(reason)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"logit_scale": 1.0, "logits_scaling": 1.0, "router_aux_loss_coef": 0.0}, ""),
        ({"logit_scale": 0.5}, "its logits are scaled or capped"),
        ({"logits_scaling": 8.0}, "its logits are scaled or capped"),
        ({"final_logit_softcapping": 30.0}, "its logits are scaled or capped"),
        ({"router_aux_loss_coef": 0.001}, "the load of its experts"),
    ],
)
def test_a_head_that_does_more_than_multiply_keeps_completions_padded_and_pairs_packed(
    content: dict[str, Any], reason: str
) -> None:
    traits = packing_traits(content)
    found = why_completions_are_padded(POLICY, traits)
    assert reason in found
    assert bool(found) is bool(reason)
    assert why_pairs_are_padded(PAIRS, traits, longest=100) == ""


def test_the_configuration_can_switch_packing_off() -> None:
    off = {"pack": False}
    assert why_pairs_are_padded(PAIRS.model_copy(update=off), packing_traits({}), longest=1) == "pack is false"
    assert why_completions_are_padded(POLICY.model_copy(update=off), packing_traits({})) == "pack is false"
    penalty = PAIRS.model_copy(update={"zero_sum_penalty": 0.1})
    assert "whole batch" in why_pairs_are_padded(penalty, packing_traits({}), longest=1)
