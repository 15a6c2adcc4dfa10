"""Configuration of evaluate_policy."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import BatchSize, BatchTokens, Confidence, Frozen, Rows, Shown, Tokens, Weight
from containers.contracts.configs.parts.judges import Judge
from containers.contracts.configs.parts.rewards import REWARD_MODEL_ALONE, RewardTerm


class EvaluatePolicyConfig(Frozen):
    """Policy against reference on held-out prompts."""

    stage: Literal["evaluate_policy"] = "evaluate_policy"
    max_prompts: Rows | None = Field(200, ge=2, description="Held-out prompts used; null: all")
    max_prompt_length: Tokens = Field(1024, ge=4, description="Tokens; longer prompts are left out and counted")
    max_completion_length: Tokens = Field(256, ge=1, description="Tokens")
    enable_thinking: bool = Field(False, description="Leave it out: the run puts train_policy.enable_thinking here")
    completions_per_prompt: BatchSize = Field(1, ge=1, description="From both policy and reference; their mean counts")
    temperature: Weight = Field(1.0, description="0 is greedy")
    rewards: tuple[RewardTerm, ...] = Field(
        REWARD_MODEL_ALONE,
        description="Leave it out: the run puts train_policy.rewards here, so that the policy is judged by what it was "
        "trained on",
    )
    rewards_trained_it: bool = Field(True, description="Leave it out: the run says whether they trained the policy")
    judges: tuple[Judge, ...] = Field(
        (),
        description="Judges beside the rewards, best such as took no part in training: reference answers, a function "
        "of your own, a reward model from elsewhere; see docs/judges.md",
    )
    batch_size: BatchSize = Field(16, ge=1, description="Completions per forward, at most")
    rollout_engine: Literal["transformers", "vllm"] = Field(
        "transformers",
        description="What writes the completions of policy and reference: transformers' generate, or a vLLM on each "
        "GPU, if the stage image has it; answer_sets uses the same",
    )
    score_batch_tokens: BatchTokens = Field(
        None, description="Tokens per forward of the reward model, as evaluate_reward_model.batch_tokens"
    )
    confidence: Confidence = Field(0.95, description="Level of the confidence intervals")
    num_samples: Shown = Field(8, description="Prompts shown side by side")
