"""Configuration of filter_dataset."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import BatchSize, Confidence, Fraction, Frozen, Name, Positive, Rows, Tokens, Weight
from containers.contracts.configs.row_reading import RowReading


class SourceShare(Frozen):
    """A source of a mixture by its name, its weight among the training pairs, and how its rows are read."""

    name: Name = Field(description="As in dataset.mixture")
    weight: Positive | None = Field(None, description="Against the other sources' weights; null: all its pairs")
    reading: RowReading = Field(RowReading(), description="As the source's keys in dataset.mixture say")


class HeldOutSuite(Frozen):
    """Data that will judge the reward model, so the model must not train on it."""

    name: Name = Field(description="As in evaluate_reward_model.suites")
    benchmark: str = Field(min_length=1, description="How its rows are read")


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


class FilterDatasetConfig(Frozen):
    """Turn rows into preference pairs. Every dropped row is counted under one named reason."""

    stage: Literal["filter_dataset"] = "filter_dataset"
    languages: tuple[str, ...] = Field(
        ("english",), min_length=1, description="Values of the `language` column to keep; HelpSteer3 says `english`"
    )
    check_language_on_text: bool = Field(True, description="Also detect the language of the text itself")
    code_rows: Literal["keep", "drop"] = Field(
        "drop",
        description="Code rows have a programming language in `language`: `keep` judges them by the language of their "
        "prose, `drop` drops and counts them",
    )
    max_characters: Rows = Field(32_000, ge=1, description="Longest prompt plus response, characters")
    max_tokens: Tokens | None = Field(
        None, ge=8, description="Longest prompt plus response in tokens; needs the base model's tokenizer; null: off"
    )
    max_malformed_fraction: Fraction = Field(0.01, description="More malformed rows than this fail the stage")
    polarity: PolaritySettings = Field(
        PolaritySettings(), description="A reference reward model that judges the labels, and how"
    )
    near_duplicates: Literal["drop", "report", "off"] = Field(
        "drop", description="Rows that nearly repeat an earlier one in every part; `report` lists and keeps them"
    )
    near_duplicate_similarity: float = Field(
        0.9,
        ge=0.5,
        le=1,
        description="Share of common five-word runs (Jaccard) that prompt, chosen and rejected must each reach",
    )
    similar_prompts: Literal["drop", "report", "off"] = Field(
        "drop",
        description="Training rows with a prompt like a validation prompt (one letter differs, the same conversation, "
        "or most of it); every split keeps such prompts on one side. `report` lists and keeps them, splits by prompt",
    )
    similar_prompt_overlap: float = Field(
        0.9,
        gt=0.5,
        le=1,
        description="Share of a prompt's words, in eight-word runs, that another one must repeat; half is enough to be "
        "kept together where no validation file is given",
    )
    contamination: Literal["drop", "report", "off"] = Field(
        "drop",
        description="Rows whose prompt is in a suite of evaluate_reward_model; `report` lists and keeps them",
    )
    contamination_overlap: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of a suite's prompt, in eight-word runs, that a row's prompt must repeat, unless it quotes "
        "it whole",
    )
    data_percentage: float = Field(
        100, gt=0, le=100, description="Take a seeded share of the surviving training pairs; 10 is a part of 20"
    )
    max_rows: Rows | None = Field(
        None, ge=1, description="Take a seeded sample of this many surviving pairs; null: all"
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
        "reward model. With 0 the policy trains on prompts that the reward model has seen",
    )
    policy_eval_prompt_fraction: Fraction = Field(
        0.1, description="Share of the prompts set aside that is held out for policy evaluation"
    )
    minimum_train_pairs: Rows = Field(100, ge=1, description="Fewer training pairs than this are an error")
    minimum_validation_pairs: Rows = Field(20, ge=1, description="Fewer validation pairs than this are an error")
    minimum_policy_prompts: Rows = Field(
        2, ge=0, description="Fewer prompts than this to train or to judge the policy are an error; 0: off"
    )
    write_comparisons: bool = Field(
        False, description="Also write train_comparisons.jsonl and test_comparisons.jsonl, as NeMo-Aligner reads them"
    )
    mixture: tuple[SourceShare, ...] = Field(
        (), description="Leave it out: the run puts the names and weights of dataset.mixture here"
    )
    reading: RowReading = Field(
        RowReading(), description="Leave it out: the run puts the keys of a single source in dataset here"
    )
    suites: tuple[HeldOutSuite, ...] = Field(
        (), description="Leave it out: the run puts evaluate_reward_model.suites here"
    )
