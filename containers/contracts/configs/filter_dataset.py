"""Configuration of filter_dataset."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import BatchSize, Confidence, Fraction, Frozen, Positive, Rows, Tokens, Weight
from containers.contracts.configs.parts.row_filters import RowFilters

# The stage's input that holds the reference reward model.
REFERENCE_INPUT = "reference_reward_model"


class ReferenceRewardModel(Frozen):
    """A trusted reward model, on the hub or in a local folder; the keys are as in `reward_model` of a run."""

    hub_id: str | None = Field(None, description="`org/name` on the hub; null: local")
    revision: str | None = Field(
        None, description="Commit (best: the run can be repeated) or branch, resolved to its commit; with hub_id only"
    )
    path: str | None = Field(
        None, min_length=1, description="Local folder with config.json, safetensors with a score head, and tokenizer"
    )


class PolaritySettings(Frozen):
    """Test with a reward model whether the labels point to the better response. Other canaries need no settings."""

    reference_reward_model: ReferenceRewardModel | None = Field(
        None,
        description="Scores a sample of the pairs of each source; if it disagrees with most labels beyond chance, the "
        "run stops. null: no such test",
    )
    num_pairs: Rows = Field(200, ge=20, description="Pairs of each source that it scores, spread over domains")
    max_length: Tokens = Field(
        2048, ge=8, description="Tokens of prompt plus response; longer pairs are left out and counted"
    )
    batch_size: BatchSize = Field(16, ge=1, description="Conversations per forward, at most")
    confidence: Confidence = Field(
        0.95, description="Level of the interval of the agreement, also with scores beside the labels"
    )


class ValidationParts(Frozen):
    """Parts of the validation prompts, each for one purpose: no choice is made on the pairs that judge."""

    tune: Weight = Field(0.25, description="Share that chooses the checkpoint and normalises scores; 0: the test part")
    test: Positive = Field(0.4, description="Share that certifies the model; only the ratios of the three count")
    frozen: Weight = Field(0.35, description="Share that compares champion and challengers; 0: the test part does")
    minimum_prompts: Rows = Field(
        50,
        ge=1,
        description="A part with fewer prompts is not split off: it is the test part, and the records say what that "
        "costs",
    )


class FilterDatasetConfig(RowFilters):
    """Turn rows into preference pairs. Every dropped row is counted under one named reason."""

    stage: Literal["filter_dataset"] = "filter_dataset"
    max_characters: Rows = Field(32_000, ge=1, description="Longest prompt plus response, characters")
    max_tokens: Tokens | None = Field(
        None, ge=8, description="Longest prompt plus response in tokens; needs the base model's tokenizer; null: off"
    )
    polarity: PolaritySettings = Field(
        PolaritySettings(), description="A reference reward model that judges the labels, and how"
    )
    data_percentage: float = Field(
        100, gt=0, le=100, description="Take a seeded share of the surviving training pairs; 10 is a part of 20"
    )
    validation_fraction: Fraction = Field(
        0.05, description="Share of prompts held out for validation where the source has no validation file"
    )
    validation_parts: ValidationParts = Field(
        ValidationParts(), description="How the validation prompts, and those that judge the policy, are divided"
    )
    policy_prompt_fraction: Fraction = Field(
        0.2,
        description="Share of training prompts set aside for policy training; no pair of theirs trains the "
        "reward model. With 0 the policy trains on prompts that the reward model has seen; beside `prompts` it is 0",
    )
    policy_eval_prompt_fraction: Fraction | None = Field(
        None, description="Share of the prompts set aside that judges the policy; null: 0.1, with train_dpo all"
    )
    minimum_train_pairs: Rows = Field(100, ge=1, description="Fewer training pairs than this are an error")
    minimum_validation_pairs: Rows = Field(20, ge=1, description="Fewer validation pairs than this are an error")
    minimum_policy_prompts: Rows = Field(
        2, ge=0, description="Fewer prompts than this to train or to judge the policy are an error; 0: off"
    )
    write_comparisons: bool = Field(
        False,
        description="Also write {train,test}_comparisons.jsonl and _prompts.jsonl, as NeMo-Aligner reads them",
    )

    @property
    def eval_prompt_fraction(self) -> float:
        """Share of the prompts set aside that judges a policy trained on rewards."""
        return 0.1 if self.policy_eval_prompt_fraction is None else self.policy_eval_prompt_fraction
