"""One config model per stage: what a person may set, with defaults, bounds and help. The only place of defaults."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from containers.contracts.base import Frozen

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
DEFAULT_CHAT_TEMPLATE = "chatml"


class FilterDatasetConfig(Frozen):
    """Rows in, preference pairs out. Every row that is dropped is counted under one named reason."""

    stage: Literal["filter_dataset"] = "filter_dataset"
    languages: tuple[str, ...] = Field(
        ("english",), min_length=1, description="Values of the `language` column to keep; HelpSteer3 says `english`"
    )
    check_language_on_text: bool = Field(True, description="Also detect the language of the text itself")
    code_rows: Literal["keep", "drop"] = Field(
        "drop",
        description="Code rows carry a programming language in `language`: `keep` judges them by the language of their "
        "prose, `drop` drops them, counted",
    )
    max_characters: int = Field(32_000, ge=1, description="Longest prompt plus response, characters")
    max_tokens: int | None = Field(
        None, ge=8, description="Longest prompt plus response in tokens; needs the base model's tokenizer; null: off"
    )
    max_malformed_fraction: Fraction = Field(0.01, description="More malformed rows than this fail the stage")
    max_rows: int | None = Field(None, ge=1, description="Take a seeded sample of this many surviving pairs; null: all")
    validation_fraction: Fraction = Field(
        0.05, description="Share of prompts held out for validation where the source has no validation file"
    )
    policy_prompt_fraction: Fraction = Field(
        0.2,
        description="Share of training prompts set aside for policy training; no pair of theirs trains the "
        "reward model. With 0 the policy trains on prompts that the reward model has seen",
    )
    policy_eval_prompt_fraction: Fraction = Field(
        0.1, description="Share of the prompts set aside that is held out for policy evaluation"
    )
    minimum_train_pairs: int = Field(100, ge=1, description="Fewer training pairs than this are an error")
    minimum_validation_pairs: int = Field(20, ge=1, description="Fewer validation pairs than this are an error")
    minimum_policy_prompts: int = Field(
        2, ge=0, description="Fewer prompts than this to train the policy on, or to judge it on, are an error; 0: off"
    )


class LoraSettings(Frozen):
    """Low-rank adapters on all linear layers. There is no dropout: TRL sets it to 0 whatever is asked."""

    r: int = Field(64, ge=1, le=1024, description="Rank; 64 on all linear layers of Qwen3-8B is 174.6M parameters")
    alpha: int = Field(128, ge=1, description="Scale; the update is multiplied by alpha / r")


class OptimizerSettings(Frozen):
    """AdamW and its schedule."""

    learning_rate: Positive = Field(1e-5, description="Peak learning rate")
    scheduler: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "cosine"
    warmup_fraction: Fraction = Field(0.03, description="Share of the steps spent warming up")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: Positive = 1.0


class TrainingSchedule(Frozen):
    """How long, how often evaluated and saved. Checked against the run's actual number of steps before it starts."""

    num_epochs: Positive = 1.0
    max_steps: int | None = Field(None, ge=1, description="Optimizer steps; overrides num_epochs")
    eval_steps: int | None = Field(None, ge=1, description="Evaluate every so many steps; null: ten times a run")
    save_steps: int | None = Field(
        None,
        ge=1,
        description="Save every so many steps, and at each evaluation that is the best so far; null: as evaluation",
    )
    logging_steps: int = Field(1, ge=1)
    save_total_limit: int = Field(3, ge=2, description="Checkpoints kept, beside the best one")


class BuildBaseModelConfig(Frozen):
    """A small Qwen3 with random weights and its tokenizer, for runs that need no model hub."""

    stage: Literal["build_base_model"] = "build_base_model"
    num_layers: int = Field(2, ge=1, le=128)
    hidden_size: int = Field(128, ge=8)
    intermediate_size: int = Field(384, ge=8)
    num_attention_heads: int = Field(4, ge=1)
    num_key_value_heads: int = Field(2, ge=1)
    head_dim: int = Field(32, ge=4)
    max_position_embeddings: int = Field(2048, ge=64)
    vocabulary_size: int | None = Field(
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
    global_batch_size: int | None = Field(None, ge=1, description="Completions per step; null: the profile's")
    max_length: int = Field(1024, ge=8, description="Tokens of prompt plus completion; longer ones are counted out")
    lora: LoraSettings | None = None
    gradient_checkpointing: bool = False
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: TrainingSchedule = TrainingSchedule()


class TrainRewardModelConfig(Frozen):
    """Bradley-Terry reward model with TRL's RewardTrainer."""

    stage: Literal["train_reward_model"] = "train_reward_model"
    global_batch_size: int | None = Field(None, ge=1, description="Pairs per step; null: the profile's")
    max_length: int = Field(2048, ge=8, description="Tokens of prompt plus completion; longer pairs are counted out")
    lora: LoraSettings | None = LoraSettings()
    use_margin: bool = Field(False, description="Demand a larger margin of strongly preferred pairs (strength 1 to 3)")
    center_rewards_coefficient: float | None = Field(0.01, ge=0, description="Pull the mean score to zero; null: off")
    gradient_checkpointing: bool = True
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: TrainingSchedule = TrainingSchedule()


class PairFile(Frozen):
    """A file of pairs with known order, in any of the schemas that filter_dataset reads."""

    name: str = Field(min_length=1, pattern=r"^[a-z0-9][a-z0-9_-]*$")
    path: str = Field(min_length=1, description="Local file: jsonl, jsonl.gz or parquet")
    minimum_accuracy: Fraction | None = Field(None, description="The gate demands at least this; null: only reported")


class EvaluateRewardModelConfig(Frozen):
    """Pairwise accuracy, margins, calibration; the figures behind the reward-model gate."""

    stage: Literal["evaluate_reward_model"] = "evaluate_reward_model"
    max_length: int = Field(2048, ge=8)
    batch_size: int = Field(16, ge=1, description="Conversations per forward")
    confidence: Fraction = Field(0.95, description="Level of the confidence intervals")
    num_bootstrap: int = Field(2000, ge=100)
    num_samples: int = Field(8, ge=0, description="Pairs shown with their scores")
    pair_files: tuple[PairFile, ...] = ()


class TrainPolicyConfig(Frozen):
    """Policy training against the reward model. RLOO: leave-one-out baseline, KL inside the reward."""

    stage: Literal["train_policy"] = "train_policy"
    algorithm: Literal["rloo"] = "rloo"
    global_batch_size: int | None = Field(None, ge=2, description="Completions per step; null: the profile's")
    num_generations: int = Field(4, ge=2, description="Completions per prompt (K); RLOO leaves one out, so at least 2")
    num_iterations: int = Field(1, ge=1, description="Updates per generated batch")
    max_prompt_length: int = Field(1024, ge=4, description="Tokens; longer prompts are counted out")
    evaluation_prompt_length: int | None = Field(
        None,
        ge=4,
        description="Leave it out: the run puts evaluate_policy.max_prompt_length here, by which the prompts are "
        "counted that the policy will be judged on, before it is trained. It changes no result",
    )
    max_completion_length: int = Field(256, ge=1, description="Tokens")
    temperature: Positive = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    beta: float = Field(0.05, ge=0, description="Weight of the KL to the reference policy")
    missing_eos_penalty: float = Field(
        0.0, ge=0, description="Subtracted from the reward of a completion that was cut off before it ended"
    )
    lora: LoraSettings | None = LoraSettings()
    gradient_checkpointing: bool = True
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=1e-6)
    schedule: TrainingSchedule = TrainingSchedule(max_steps=100)
    num_logged_completions: int = Field(8, ge=0, description="Completions kept for the table, each logging step")


class EvaluatePolicyConfig(Frozen):
    """Policy against reference on held-out prompts."""

    stage: Literal["evaluate_policy"] = "evaluate_policy"
    max_prompts: int | None = Field(200, ge=2, description="Held-out prompts used; null: all")
    max_prompt_length: int = Field(1024, ge=4)
    max_completion_length: int = Field(256, ge=1)
    completions_per_prompt: int = Field(1, ge=1)
    temperature: float = Field(1.0, ge=0, description="0 is greedy")
    batch_size: int = Field(16, ge=1)
    confidence: Fraction = 0.95
    num_bootstrap: int = Field(2000, ge=100)
    num_samples: int = Field(8, ge=0, description="Prompts shown side by side")


class WriteReportConfig(Frozen):
    """The page at the end."""

    stage: Literal["write_report"] = "write_report"
    title: str = "RLHF run"
    num_samples: int = Field(8, ge=0)


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
