"""One config model per stage: what a person may set, with defaults, bounds and help. The only place of defaults."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from containers.contracts.base import (
    BatchSize,
    Confidence,
    Frozen,
    Resamples,
    Rows,
    Shown,
    Steps,
    Tokens,
    TokensPerForward,
    Weight,
    Width,
)
from containers.contracts.base import Fraction as Fraction
from containers.contracts.base import Positive as Positive
from containers.contracts.configs.filter_dataset import FilterDatasetConfig as FilterDatasetConfig
from containers.contracts.configs.filter_dataset import HeldOutSuite as HeldOutSuite
from containers.contracts.configs.filter_dataset import SourceShare as SourceShare
from containers.contracts.configs.training import VLLM_FRACTION_ALONE, VLLM_FRACTION_BESIDE_TRAINING
from containers.contracts.configs.training import ChatTemplate as ChatTemplate
from containers.contracts.configs.training import LoraSettings as LoraSettings
from containers.contracts.configs.training import OptimizerSettings as OptimizerSettings
from containers.contracts.configs.training import TrainingSchedule as TrainingSchedule

# Help of keys that several stages have.
_LONGEST = "Tokens of prompt plus completion; longer ones are left out and counted"
_CHECKPOINTING = "Compute activations again in the backward pass: less memory, more time"
_OPTIMIZER = "AdamW and its learning rate"
_SCHEDULE = "How long, how often evaluated and saved"
_RESAMPLES = "Resamples of the bootstrap behind the intervals"


class BuildBaseModelConfig(Frozen):
    """A small Qwen3 with random weights and its tokenizer, for runs that need no model hub."""

    stage: Literal["build_base_model"] = "build_base_model"
    num_layers: int = Field(2, ge=1, le=128, description="Decoder layers")
    hidden_size: Width = Field(128, ge=8, description="Width of the model")
    intermediate_size: Width = Field(384, ge=8, description="Width inside the MLP of a layer")
    num_attention_heads: Width = Field(4, ge=1, description="Query heads; a multiple of num_key_value_heads")
    num_key_value_heads: Width = Field(2, ge=1, description="Heads of keys and values, each shared by some query heads")
    head_dim: Width = Field(32, ge=4, description="Width of a head")
    max_position_embeddings: Tokens = Field(2048, ge=64, description="Longest text, tokens")
    vocabulary_size: Width | None = Field(
        512, ge=260, description="Size of a byte-level BPE trained on the pairs; null where tokenizer_file is given"
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> "BuildBaseModelConfig":
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of "
                f"num_key_value_heads {self.num_key_value_heads}."
            )
        return self


class TrainSftConfig(Frozen):
    """Supervised fine-tuning on the completions of the training pairs."""

    stage: Literal["train_sft"] = "train_sft"
    completions: Literal["chosen", "both"] = Field("chosen", description="Which side of each pair to imitate")
    global_batch_size: BatchSize | None = Field(None, ge=1, description="Completions per step; null: the profile's")
    max_length: Tokens = Field(1024, ge=8, description=_LONGEST)
    chat_template: ChatTemplate | None = Field(
        None,
        description="How conversations become text, as in train_reward_model; it travels with the saved model, from "
        "which reward model and policy start. null: that of the base model",
    )
    lora: LoraSettings | None = Field(None, description="Train adapters only; null: every weight")
    gradient_checkpointing: bool = Field(False, description=_CHECKPOINTING)
    optimizer: OptimizerSettings = Field(OptimizerSettings(), description=_OPTIMIZER)
    schedule: TrainingSchedule = Field(TrainingSchedule(), description=_SCHEDULE)


class TrainRewardModelConfig(Frozen):
    """Bradley-Terry reward model with TRL's RewardTrainer."""

    stage: Literal["train_reward_model"] = "train_reward_model"
    global_batch_size: BatchSize | None = Field(None, ge=1, description="Pairs per step; null: the profile's")
    max_length: Tokens = Field(2048, ge=8, description=_LONGEST)
    chat_template: ChatTemplate | None = Field(
        None,
        description="How conversations become text: a name in configs/chat_templates, a .jinja file, or the template "
        "itself; it travels with the saved model. null: that of the start model",
    )
    use_cls: bool = Field(
        False, description="End each conversation with a token of its own, <|cls|>, at whose position the score is read"
    )
    trainable: Literal["lora", "full", "head"] = Field(
        "lora", description="lora: adapters and score head; full: every weight; head: the score head on a frozen model"
    )
    lora: LoraSettings | None = Field(
        LoraSettings(), description="The adapters; null with `trainable: full` or `head`, which have none"
    )
    use_margin: bool = Field(False, description="Demand a larger margin of strongly preferred pairs (strength 1 to 3)")
    center_rewards_coefficient: Weight | None = Field(
        0.01, description="Pull the two scores of each pair to a sum of zero; null: off"
    )
    zero_sum_penalty: Weight = Field(
        0.0, description="Pull the mean score of each batch to zero, whatever the level of single pairs; 0: off"
    )
    gradient_checkpointing: bool = Field(True, description=_CHECKPOINTING)
    pack: bool = Field(
        True,
        description="Compute each prompt once for both of its answers, and no padding; models whose attention does "
        "more, and a zero_sum_penalty, keep padded rows, and the log says so",
    )
    pack_tokens: TokensPerForward | None = Field(
        None,
        ge=1,
        description="Tokens computed at a time; a longer pair is computed alone. null: from the batch per device",
    )
    optimizer: OptimizerSettings = Field(OptimizerSettings(), description=_OPTIMIZER)
    schedule: TrainingSchedule = Field(TrainingSchedule(), description=_SCHEDULE)

    @model_validator(mode="before")
    @classmethod
    def _says_once_what_trains(cls, given: Any) -> Any:
        """`trainable: head` alone leaves the adapters out, and `lora: null` alone trains every weight."""
        if not isinstance(given, dict):
            return given
        if given.get("trainable", "lora") != "lora" and "lora" not in given:
            return {**given, "lora": None}
        if "trainable" not in given and "lora" in given and given["lora"] is None:
            return {**given, "trainable": "full"}
        return given

    @model_validator(mode="after")
    def _trains_what_it_says(self) -> "TrainRewardModelConfig":
        if self.trainable == "lora" and self.lora is None:
            raise ValueError("trainable is `lora`, and lora is null. Give lora its rank, or set trainable to `full`.")
        if self.trainable != "lora" and self.lora is not None:
            raise ValueError(f"trainable is `{self.trainable}`, which has no adapters: set lora to null.")
        return self


BenchmarkName = Literal[
    "pairs",
    "reward_bench",
    "reward_bench_2",
    "rm_bench",
    "judge_bench",
    "llmbar",
    "arena",
    "truthfulqa",
    "pku_safety",
    "verbosity",
]


class SuiteFile(Frozen):
    """Data that the reward model is judged by, and the benchmark whose rule scores it."""

    name: str = Field(
        min_length=1,
        pattern=r"^[a-z0-9][a-z0-9_-]*$",
        description="Lower-case letters, digits, `-`, `_`; names its figures",
    )
    benchmark: BenchmarkName = Field(
        "pairs", description="How rows are read and scored; `pairs` takes every schema that filter_dataset reads"
    )
    hub_id: str | None = Field(None, description="`org/name` of a dataset on the hub; null: local")
    revision: str | None = Field(
        None, description="Commit (best: the run can be repeated) or branch, resolved to its commit; with hub_id only"
    )
    path: str = Field(
        min_length=1,
        max_length=1024,
        description="With hub_id: a file or pattern in the repository; else a local jsonl, jsonl.gz or parquet file, "
        "or a folder of them",
    )
    minimum_accuracy: Fraction | None = Field(
        None, description="The gate demands at least this of the benchmark's own figure; null: only reported"
    )


BatchTokens = Annotated[TokensPerForward | None, Field(ge=1)]


class EvaluateRewardModelConfig(Frozen):
    """The certificate of a reward model: suites, length bias, score parity; the figures behind its gate."""

    stage: Literal["evaluate_reward_model"] = "evaluate_reward_model"
    max_length: Tokens = Field(2048, ge=8, description=_LONGEST)
    batch_size: BatchSize = Field(
        64, ge=1, description="Conversations per forward, at most; batch_tokens bounds them too"
    )
    batch_tokens: BatchTokens = Field(
        None, description="Tokens per forward with their padding, at most; null: by the device (docs/suites.md)"
    )
    confidence: Confidence = Field(0.95, description="Level of the confidence intervals")
    num_bootstrap: Resamples = Field(2000, ge=100, description=_RESAMPLES)
    num_samples: Shown = Field(8, description="Pairs shown with their scores")
    num_padded_pairs: Rows = Field(
        64, ge=0, description="Pairs of each suite whose rejected response gets filler appended; 0: no such attack"
    )
    suites: tuple[SuiteFile, ...] = Field((), description="Judged by, beside the validation pairs")


class TrainPolicyConfig(Frozen):
    """Policy training against the reward model. RLOO: leave-one-out baseline, KL inside the reward."""

    stage: Literal["train_policy"] = "train_policy"
    algorithm: Literal["rloo"] = Field("rloo", description="REINFORCE leave-one-out is the only one here")
    global_batch_size: BatchSize | None = Field(None, ge=2, description="Completions per step; null: the profile's")
    num_generations: BatchSize = Field(
        4, ge=2, description="Completions per prompt (K); RLOO leaves one out, so at least 2"
    )
    num_iterations: Steps = Field(1, description="Updates per generated batch")
    max_prompt_length: Tokens = Field(1024, ge=4, description="Tokens; longer prompts are left out and counted")
    evaluation_prompt_length: Tokens | None = Field(
        None,
        ge=4,
        description="Leave it out: the run puts evaluate_policy.max_prompt_length here, by which the prompts are "
        "counted that the policy will be judged on, before it is trained. It changes no result",
    )
    max_completion_length: Tokens = Field(256, ge=1, description="Tokens")
    temperature: Positive = Field(1.0, description="Of the completions; below 1 they vary less")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Draw from the likeliest tokens that have this probability together; 1: from all"
    )
    beta: Weight = Field(0.05, description="Weight of the KL to the reference policy")
    missing_eos_penalty: Weight = Field(
        0.0, description="Subtracted from the reward of a completion that was cut off before it ended"
    )
    normalise_rewards: bool = Field(
        False,
        description="Rewards are (score - mean) / standard deviation, both as the reward model's own validation pairs "
        "gave them, so that beta means the same with every reward model",
    )
    score_batch_tokens: BatchTokens = Field(
        None, description="Tokens per forward of the reward model, as evaluate_reward_model.batch_tokens"
    )
    lora: LoraSettings | None = Field(LoraSettings(), description="Train adapters only; null: every weight")
    gradient_checkpointing: bool = Field(True, description=_CHECKPOINTING)
    pack: bool = Field(
        True,
        description="Compute each prompt once for all of its completions, and no padding; models whose attention does "
        "more keep padded rows, and the log says so",
    )
    pack_tokens: TokensPerForward | None = Field(
        None,
        ge=1,
        description="Tokens computed at a time; a longer completion with its prompt is computed alone. null: from the "
        "batch per device",
    )
    rollout_engine: Literal["shared_prompts", "continuous_batching", "vllm", "transformers"] = Field(
        "shared_prompts",
        description="What writes the completions: transformers' generate, with each prompt computed once for all of "
        "its completions; its continuous batching; vLLM, where the stage image has it; or generate by itself, which "
        "models get for which one of the first two is not the same, and the log says so",
    )
    vllm_gpus: int = Field(
        0,
        ge=0,
        le=64,
        description="GPUs that vLLM has to itself, one vLLM for all ranks, the model divided over them; the other GPUs "
        "have a rank each. 0: a vLLM beside each rank, on its GPU. Only with that engine",
    )
    vllm_memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="Share of a GPU's memory that vLLM takes, start model and cache; null: "
        f"{VLLM_FRACTION_BESIDE_TRAINING:g} beside a rank, {VLLM_FRACTION_ALONE:g} on GPUs of its own. Only with that "
        "engine",
    )
    optimizer: OptimizerSettings = Field(OptimizerSettings(learning_rate=1e-6), description=_OPTIMIZER)
    schedule: TrainingSchedule = Field(TrainingSchedule(max_steps=100), description=_SCHEDULE)
    num_logged_completions: Shown = Field(8, description="Completions kept for the table, each logging step")

    @property
    def vllm_fraction(self) -> float:
        """Share of a GPU's memory that vLLM takes."""
        if self.vllm_memory_fraction is not None:
            return self.vllm_memory_fraction
        return VLLM_FRACTION_ALONE if self.vllm_gpus else VLLM_FRACTION_BESIDE_TRAINING


class EvaluatePolicyConfig(Frozen):
    """Policy against reference on held-out prompts."""

    stage: Literal["evaluate_policy"] = "evaluate_policy"
    max_prompts: Rows | None = Field(200, ge=2, description="Held-out prompts used; null: all")
    max_prompt_length: Tokens = Field(1024, ge=4, description="Tokens; longer prompts are left out and counted")
    max_completion_length: Tokens = Field(256, ge=1, description="Tokens")
    completions_per_prompt: BatchSize = Field(1, ge=1, description="Of policy and reference each; their mean counts")
    temperature: Weight = Field(1.0, description="0 is greedy")
    batch_size: BatchSize = Field(16, ge=1, description="Completions per forward, at most")
    score_batch_tokens: BatchTokens = Field(
        None, description="Tokens per forward of the reward model, as evaluate_reward_model.batch_tokens"
    )
    confidence: Confidence = Field(0.95, description="Level of the confidence intervals")
    num_bootstrap: Resamples = Field(2000, ge=100, description=_RESAMPLES)
    num_samples: Shown = Field(8, description="Prompts shown side by side")


class WriteReportConfig(Frozen):
    """The page at the end."""

    stage: Literal["write_report"] = "write_report"
    title: str = Field("RLHF run", description="Heading of the page")
    num_samples: Shown = Field(8, description="Samples shown of each evaluation, at most")


StageConfig = Annotated[
    FilterDatasetConfig
    | BuildBaseModelConfig
    | TrainSftConfig
    | TrainRewardModelConfig
    | EvaluateRewardModelConfig
    | TrainPolicyConfig
    | EvaluatePolicyConfig
    | WriteReportConfig,
    Field(discriminator="stage"),
]
