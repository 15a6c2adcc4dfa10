"""Configuration of compare_policies, which `rlhf arms` starts."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen, Name, Seed
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig


class ComparedPolicy(Frozen):
    """One of the policies: its arm, and the seed of its training."""

    arm: Name
    seed: Seed


class ComparePoliciesConfig(Frozen):
    """The policies of several arms against each other, on the prompts that judged each of them.

    Its inputs are `completions_0`, `completions_1` …, what sample_completions wrote for each policy, and `verdict_0` …,
    what evaluate_policy said of it.
    """

    stage: Literal["compare_policies"] = "compare_policies"
    policies: tuple[ComparedPolicy, ...] = Field(min_length=1, description="In the order of their inputs")
    evaluation: EvaluatePolicyConfig = Field(description="That of the runs: its judges compare the policies")
    same_rewards: bool = Field(
        description="Whether all policies were judged by the same rewards, so that these compare"
    )
    with_start: bool = Field(description="Whether all started from the same model, so that it is compared with them")
