"""Configuration of evaluate_reward_model, and of the suites that judge the model."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import (
    BatchSize,
    BatchTokens,
    Confidence,
    Fraction,
    Frozen,
    Resamples,
    Rows,
    Shown,
    Tokens,
)
from containers.contracts.configs.parts.data_file import DataFile
from containers.contracts.configs.parts.training import LONGEST
from containers.contracts.registries import BenchmarkName


class SuiteFile(DataFile):
    """Data that judges the reward model, and the benchmark whose rule scores it."""

    benchmark: BenchmarkName = Field(
        "pairs", description="How rows are read and scored; `pairs` takes every schema that filter_dataset reads"
    )
    minimum_accuracy: Fraction | None = Field(
        None, description="The gate demands at least this of the benchmark's own figure; null: only reported"
    )


class EvaluateRewardModelConfig(Frozen):
    """The certificate of a reward model: suites, length bias, score parity; the figures behind its gate."""

    stage: Literal["evaluate_reward_model"] = "evaluate_reward_model"
    max_length: Tokens = Field(2048, ge=8, description=LONGEST)
    batch_size: BatchSize = Field(
        64, ge=1, description="Conversations per forward, at most; batch_tokens bounds them too"
    )
    batch_tokens: BatchTokens = Field(
        None, description="Tokens per forward with their padding, at most; null: by the device (docs/suites.md)"
    )
    confidence: Confidence = Field(0.95, description="Level of the confidence intervals")
    num_bootstrap: Resamples = Field(2000, ge=100, description="Resamples of the bootstrap behind the length figures")
    num_samples: Shown = Field(8, description="Pairs shown with their scores")
    num_edited_pairs: Rows = Field(
        64,
        ge=0,
        description="Pairs of each suite whose responses are edited and scored again, for what length does to their "
        "scores: up to 12 conversations a pair; 0: no edits",
    )
    suites: tuple[SuiteFile, ...] = Field((), description="Suites that judge the model, beside the validation pairs")
