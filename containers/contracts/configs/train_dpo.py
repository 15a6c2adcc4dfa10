"""Configuration of train_dpo."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import BatchSize, Frozen, Positive, Tokens, TokensPerForward, Weight
from containers.contracts.configs.parts.preference_losses import (
    PREFERENCE_LOSSES,
    PreferenceLoss,
    PreferenceLossName,
    Smoothing,
)
from containers.contracts.configs.parts.training import (
    CHECKPOINTING,
    LONGEST,
    OPTIMIZER,
    QUANTIZATION,
    SCHEDULE,
    ChatTemplate,
    Checkpointing,
    LoraSettings,
    OptimizerSettings,
    Quantization,
    TrainingSchedule,
)


class TrainDpoConfig(Frozen):
    """Training of a policy on pairs, without a reward model: chosen completions become likelier than rejected ones."""

    stage: Literal["train_dpo"] = "train_dpo"
    loss: PreferenceLossName = Field(
        "sigmoid",
        description="sigmoid: DPO; robust: the same for pairs of which a known share is the wrong way round; hinge: "
        "SLiC; ipo; simpo and orpo: without a reference; kto: each completion by itself; sft: fine-tuning on the "
        "chosen completions alone (Preferred-FT), to compare the others with",
    )
    beta: Positive | None = Field(
        None,
        description="How strongly the policy is held to the reference: the smaller, the further it may go; of orpo the "
        "weight of the odds ratio. null: as the loss's paper has it, for sigmoid 0.1",
    )
    label_smoothing: Smoothing | None = Field(
        None,
        description="Share of the pairs that may be the wrong way round; for sigmoid and robust. null: 0, for robust "
        "0.1",
    )
    simpo_gamma: Weight | None = Field(
        None, description="Margin of reward that simpo demands between the two completions. null: 1 for simpo, else 0"
    )
    sft_weight: Weight | None = Field(
        None,
        description="Weight of the loss of fine-tuning on the chosen completions, per token; it keeps them likely. "
        "null: 1 for orpo, else 0",
    )
    length_normalised: bool | None = Field(
        None,
        description="Compare means over a completion's tokens instead of sums, so that length counts less. null: as "
        "the loss's paper has it, true for ipo, simpo and orpo",
    )
    global_batch_size: BatchSize | None = Field(None, ge=1, description="Pairs per step; null: the profile's")
    max_length: Tokens = Field(2048, ge=8, description=LONGEST)
    chat_template: ChatTemplate | None = Field(
        None,
        description="How conversations become text, as in train_reward_model; it is saved with the model. null: that "
        "of the start model",
    )
    lora: LoraSettings | None = Field(LoraSettings(), description="Train adapters only; null: every weight")
    quantization: Quantization | None = Field(None, description=QUANTIZATION)
    gradient_checkpointing: Checkpointing = Field(True, description=CHECKPOINTING)
    pack: bool = Field(
        True,
        description="Compute each prompt once for both of its completions, without padding; models with another kind "
        "of attention keep padded rows, and the log says so",
    )
    pack_tokens: TokensPerForward | None = Field(
        None,
        ge=1,
        description="Tokens computed at a time; a longer pair is computed alone. null: from the batch per device",
    )
    optimizer: OptimizerSettings = Field(
        OptimizerSettings(learning_rate=5e-6), description=f"{OPTIMIZER}; where every weight is trained, 5e-7 is usual"
    )
    schedule: TrainingSchedule = Field(TrainingSchedule(), description=SCHEDULE)

    @property
    def method(self) -> PreferenceLoss:
        """The loss with the parts that this configuration sets itself."""
        own = {
            name: getattr(self, name)
            for name in ("beta", "label_smoothing", "simpo_gamma", "sft_weight", "length_normalised")
            if getattr(self, name) is not None
        }
        return PREFERENCE_LOSSES[self.loss].model_copy(update=own)
