"""Configuration of train_reward_model."""

from typing import Any, Literal

from pydantic import Field, model_validator

from containers.contracts.base import BatchSize, Frozen, Rows, Tokens, TokensPerForward, Weight
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


class TrainRewardModelConfig(Frozen):
    """Bradley-Terry reward model with TRL's RewardTrainer."""

    stage: Literal["train_reward_model"] = "train_reward_model"
    global_batch_size: BatchSize | None = Field(None, ge=1, description="Pairs per step; null: the profile's")
    max_length: Tokens = Field(2048, ge=8, description=LONGEST)
    chat_template: ChatTemplate | None = Field(
        None,
        description="How conversations become text: a name in configs/chat_templates, a .jinja file, or the template "
        "itself; it is saved with the model. null: that of the start model",
    )
    use_cls: bool = Field(
        False, description="End each conversation with a special token, <|cls|>, at whose position the score is read"
    )
    trainable: Literal["lora", "full", "head"] = Field(
        "lora", description="lora: adapters and score head; full: every weight; head: the score head on a frozen model"
    )
    lora: LoraSettings | None = Field(
        LoraSettings(), description="The adapters; null with `trainable: full` or `head`, which have none"
    )
    quantization: Quantization | None = Field(None, description=QUANTIZATION)
    use_margin: bool = Field(False, description="Demand a larger margin of strongly preferred pairs (strength 1 to 3)")
    center_rewards_coefficient: Weight | None = Field(
        0.01, description="Pull the two scores of each pair to a sum of zero; null: off"
    )
    zero_sum_penalty: Weight = Field(
        0.0, description="Pull the mean score of each batch to zero, but not that of single pairs; 0: off"
    )
    gradient_checkpointing: Checkpointing = Field(True, description=CHECKPOINTING)
    pack: bool = Field(
        True,
        description="Compute each prompt once for both of its answers, without padding; models with another kind of "
        "attention, and a zero_sum_penalty, keep padded rows, and the log says so",
    )
    pack_tokens: TokensPerForward | None = Field(
        None,
        ge=1,
        description="Tokens computed at a time; a longer pair is computed alone. null: from the batch per device",
    )
    max_eval_pairs: Rows | None = Field(
        512,
        ge=8,
        description="Validation pairs of each evaluation during training, drawn by prompt and the same each time; the "
        "last weights and the chosen ones are measured on all. null: all each time",
    )
    optimizer: OptimizerSettings = Field(OptimizerSettings(), description=OPTIMIZER)
    schedule: TrainingSchedule = Field(TrainingSchedule(), description=SCHEDULE)

    @model_validator(mode="before")
    @classmethod
    def _says_once_what_trains(cls, given: Any) -> Any:
        """Set the other key: `trainable: head` alone removes the adapters, `lora: null` alone trains every weight."""
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
            raise ValueError("trainable is `lora`, and lora is null. Set lora.r, or set trainable to `full`.")
        if self.trainable != "lora" and self.lora is not None:
            raise ValueError(f"trainable is `{self.trainable}`, which has no adapters: set lora to null.")
        return self
