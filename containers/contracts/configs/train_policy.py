"""Configuration of train_policy."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from containers.contracts.base import (
    BatchSize,
    BatchTokens,
    Fraction,
    Frozen,
    Positive,
    Shown,
    Steps,
    Tokens,
    TokensPerForward,
    Weight,
)
from containers.contracts.configs.parts.critic import CriticSettings
from containers.contracts.configs.parts.evidence import EvidenceSettings
from containers.contracts.configs.parts.policy_algorithms import (
    Algorithm,
    AlgorithmParts,
    PolicyAlgorithm,
    algorithm_with,
)
from containers.contracts.configs.parts.rewards import REWARD_MODEL_ALONE, RewardTerm, RewardTrial
from containers.contracts.configs.parts.training import (
    CHECKPOINTING,
    OPTIMIZER,
    QUANTIZATION,
    SCHEDULE,
    VLLM_FRACTION_ALONE,
    VLLM_FRACTION_BESIDE_TRAINING,
    Checkpointing,
    LoraSettings,
    OptimizerSettings,
    Quantization,
    TrainingSchedule,
)
from containers.contracts.registries import RolloutEngine


def _the_whole_distribution(value: float) -> float:
    if value != 1:
        raise ValueError(
            f"{value:g} would draw completions from the likeliest tokens alone, and the probabilities that are trained "
            "are those of all tokens. Use 1; `temperature` may be lower."
        )
    return value


class AdaptiveKl(Frozen):
    """Let beta follow the KL: it grows while the KL is above its target, and falls while it is below."""

    target: Positive = Field(description="Nats between a completion's probability by the policy and by the reference")
    horizon: BatchSize = Field(
        10_000, ge=1, description="Completions in which beta changes by at most a fifth, up or down"
    )


class SamplingCorrection(Frozen):
    """Weights that make up for an engine whose probabilities are not quite the policy's; only vllm has its own."""

    over: Literal["token", "completion", "off"] = Field(
        "token", description="The weight is the policy's probability by the engine's: of each token, or of all"
    )
    cap: Positive = Field(2.0, description="A weight is at most this")
    minimum_effective_fraction: Fraction = Field(
        0.5, description="Training ends where the weights leave fewer of the tokens: (Σw)² / (N Σw²)"
    )


class TrainPolicyConfig(Frozen):
    """Policy training: completions of the policy are rewarded, and those better than others become likelier."""

    stage: Literal["train_policy"] = "train_policy"
    algorithm: Algorithm = Field("rloo", description="How rewards change the policy; see docs/training.md")
    parts: AlgorithmParts = Field(
        AlgorithmParts(), description="Single parts of the algorithm; all left out: as its paper has them"
    )
    global_batch_size: BatchSize | None = Field(None, ge=2, description="Completions per step; null: the profile's")
    rollout_batch_size: BatchSize | None = Field(
        None,
        ge=2,
        description="Completions that one policy writes together; they are trained on in minibatches of "
        "global_batch_size, in another order each epoch. null: one minibatch",
    )
    num_generations: BatchSize = Field(
        4, ge=1, description="Completions per prompt (K); at least 2, but for reinforce++ and ppo"
    )
    num_iterations: Steps = Field(1, description="Epochs: how often each completion is used")
    max_prompt_length: Tokens = Field(1024, ge=4, description="Tokens; longer prompts are left out and counted")
    evaluation_prompt_length: Tokens | None = Field(
        None,
        ge=4,
        description="Leave it out: the run puts evaluate_policy.max_prompt_length here. Before training, the stage "
        "counts with it the prompts that will judge the policy. It changes no result",
    )
    max_completion_length: Tokens = Field(256, ge=1, description="Tokens")
    enable_thinking: bool = Field(
        False,
        description="The policy may write a thought before its answer, where its chat template has this setting "
        "(Qwen3); leave it room in max_completion_length. evaluate_policy does the same",
    )
    temperature: Positive = Field(1.0, description="Of the completions; below 1 they vary less")
    top_p: Annotated[float, Field(gt=0, le=1), AfterValidator(_the_whole_distribution)] = Field(
        1.0, description="Only 1, so that completions are drawn from the distribution that is trained"
    )
    rewards: tuple[RewardTerm, ...] = Field(
        REWARD_MODEL_ALONE, description="What a completion is worth: the sum of these; left out: the reward model alone"
    )
    reward_trial: RewardTrial = Field(
        RewardTrial(), description="Whether outcomes tell right from wrong, tried before training"
    )
    beta: Weight | None = Field(
        None, description="Weight of the KL to the reference policy; null: the algorithm's own, for rloo 0.05"
    )
    adaptive_kl: AdaptiveKl | None = Field(None, description="Let beta follow the KL; null: it stays as it is")
    critic: CriticSettings = Field(CriticSettings(), description="What expects the reward, with algorithm ppo")
    missing_eos_penalty: Weight = Field(
        0.0, description="Subtracted from the reward of a completion that was cut off before it ended"
    )
    mask_cut_off: bool = Field(False, description="Completions that were cut off before they ended train nothing")
    max_steps_without_signal: Steps = Field(
        20, description="Training stops after so many steps in a row in which no prompt's completions differ in reward"
    )
    score_batch_tokens: BatchTokens = Field(
        None, description="Tokens per forward of the reward model, as evaluate_reward_model.batch_tokens"
    )
    lora: LoraSettings | None = Field(LoraSettings(), description="Train adapters only; null: every weight")
    quantization: Quantization | None = Field(None, description=QUANTIZATION)
    gradient_checkpointing: Checkpointing = Field(True, description=CHECKPOINTING)
    distribution: Literal["ddp", "fsdp"] = Field(
        "ddp",
        description="ddp: each rank holds the whole policy; fsdp: the ranks divide its weights, gradients and "
        "optimizer states among them, and gather the weights to write completions. It counts here, in place of the "
        "profile's",
    )
    offload_frozen: bool = Field(
        False,
        description="Keep the reference of `lora: null`, and reward models with weights of their own, in host memory, "
        "and copy them to the GPU for their turn in each step",
    )
    pack: bool = Field(
        True,
        description="Compute each prompt once for all of its completions, without padding; models with another kind "
        "of attention keep padded rows, and the log says so",
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
        "its completions; its continuous batching; vLLM, if the stage image has it; or plain generate. Models for "
        "which one of the first two gives other results get plain generate, and the log says so",
    )
    vllm_gpus: int = Field(
        0,
        ge=0,
        le=64,
        description="GPUs for vLLM alone: one vLLM for all ranks, with the model divided over these GPUs; each other "
        "GPU has a rank. 0: a vLLM beside each rank, on its GPU. Only with that engine",
    )
    vllm_memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="Share of a GPU's memory for vLLM, start model and cache; null: "
        f"{VLLM_FRACTION_BESIDE_TRAINING:g} beside a rank, {VLLM_FRACTION_ALONE:g} on GPUs for vLLM alone. Only with "
        "that engine",
    )
    vllm_sleeps: bool = Field(
        True, description="A vLLM beside a rank gives its GPU memory back between batches. Only with that engine"
    )
    sampling_correction: SamplingCorrection = Field(
        SamplingCorrection(), description="With vllm: weights of its tokens in the loss"
    )
    optimizer: OptimizerSettings = Field(OptimizerSettings(learning_rate=1e-6), description=OPTIMIZER)
    schedule: TrainingSchedule = Field(TrainingSchedule(max_steps=100), description=SCHEDULE)
    evidence: EvidenceSettings | None = Field(
        EvidenceSettings(),
        description="Whether it still gets better, tried while it trains; null: the last step is published unseen",
    )
    num_logged_completions: Shown = Field(8, description="Completions kept for the table, each logging step")

    @property
    def method(self) -> PolicyAlgorithm:
        """The algorithm with the parts that this configuration sets itself."""
        return algorithm_with(self.algorithm, parts=self.parts, beta=self.beta)

    @property
    def has_critic(self) -> bool:
        """Whether advantages need one."""
        return self.method.advantage == "gae"

    @property
    def keeps_start_model(self) -> bool:
        """Whether the start model stays in memory as it is, in the profile's precision, so that others can share it."""
        return self.lora is not None or (self.distribution == "fsdp" and self.method.beta > 0)

    @property
    def vllm_fraction(self) -> float:
        """Share of a GPU's memory for vLLM."""
        if self.vllm_memory_fraction is not None:
            return self.vllm_memory_fraction
        return VLLM_FRACTION_ALONE if self.vllm_gpus else VLLM_FRACTION_BESIDE_TRAINING
