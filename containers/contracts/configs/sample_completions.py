"""Configuration of sample_completions."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import BatchSize, Frozen, Rows, Tokens, Weight
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig

_OF_EVALUATION = "Leave it out: the run puts that of evaluate_policy here"


class SampleCompletionsConfig(Frozen):
    """What policy and reference write on held-out prompts; it is written once, however many judges read it."""

    stage: Literal["sample_completions"] = "sample_completions"
    batch_size: BatchSize | None = Field(
        None, ge=1, description="Completions per forward, at most; null: as evaluate_policy.batch_size"
    )
    rollout_engine: Literal["transformers", "vllm"] = Field("transformers", description=_OF_EVALUATION)
    max_prompts: Rows | None = Field(200, ge=2, description=_OF_EVALUATION)
    max_prompt_length: Tokens = Field(1024, ge=4, description=_OF_EVALUATION)
    max_completion_length: Tokens = Field(256, ge=1, description=_OF_EVALUATION)
    enable_thinking: bool = Field(False, description=_OF_EVALUATION)
    completions_per_prompt: BatchSize = Field(1, ge=1, description=_OF_EVALUATION)
    temperature: Weight = Field(1.0, description=_OF_EVALUATION)

    def for_evaluation(self, evaluation: EvaluatePolicyConfig) -> "SampleCompletionsConfig":
        """Return this configuration with what the evaluation says of prompts and completions."""
        shared = evaluation.model_dump(include=set(type(self).model_fields) - {"stage", "batch_size"})
        own = evaluation.batch_size if self.batch_size is None else self.batch_size
        return self.model_copy(update={**shared, "batch_size": own})
