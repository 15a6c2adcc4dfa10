"""What train_policy is told."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from containers.contracts.base import (
    BatchSize,
    BatchTokens,
    Frozen,
    Positive,
    Shown,
    Steps,
    Tokens,
    TokensPerForward,
    Weight,
)
from containers.contracts.configs.training import (
    CHECKPOINTING,
    OPTIMIZER,
    SCHEDULE,
    VLLM_FRACTION_ALONE,
    VLLM_FRACTION_BESIDE_TRAINING,
    LoraSettings,
    OptimizerSettings,
    TrainingSchedule,
)
from containers.contracts.registries import ALGORITHMS, REWARDS, ROLLOUT_ENGINES

if TYPE_CHECKING:
    Algorithm = str
    RewardName = str
    RolloutEngine = str
else:
    Algorithm = Literal[tuple(ALGORITHMS)]
    RewardName = Literal[tuple(REWARDS)]
    RolloutEngine = Literal[tuple(ROLLOUT_ENGINES)]


class TrainPolicyConfig(Frozen):
    """Policy training against the reward model. RLOO: leave-one-out baseline, KL inside the reward."""

    stage: Literal["train_policy"] = "train_policy"
    algorithm: Algorithm = Field("rloo", description="REINFORCE leave-one-out is the only one here")
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
    reward: RewardName = Field("reward_model", description="What completions are worth: the reward model's score")
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
    gradient_checkpointing: bool = Field(True, description=CHECKPOINTING)
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
    rollout_engine: RolloutEngine = Field(
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
    optimizer: OptimizerSettings = Field(OptimizerSettings(learning_rate=1e-6), description=OPTIMIZER)
    schedule: TrainingSchedule = Field(TrainingSchedule(max_steps=100), description=SCHEDULE)
    num_logged_completions: Shown = Field(8, description="Completions kept for the table, each logging step")

    @property
    def vllm_fraction(self) -> float:
        """Share of a GPU's memory that vLLM takes."""
        if self.vllm_memory_fraction is not None:
            return self.vllm_memory_fraction
        return VLLM_FRACTION_ALONE if self.vllm_gpus else VLLM_FRACTION_BESIDE_TRAINING
