"""Configuration of train_sft."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import BatchSize, Frozen, Tokens, TokensPerForward
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


class TrainSftConfig(Frozen):
    """Supervised fine-tuning on the completions of the training pairs."""

    stage: Literal["train_sft"] = "train_sft"
    completions: Literal["chosen", "both"] = Field("chosen", description="Which side of each pair to imitate")
    global_batch_size: BatchSize | None = Field(None, ge=1, description="Completions per step; null: the profile's")
    max_length: Tokens = Field(1024, ge=8, description=LONGEST)
    chat_template: ChatTemplate | None = Field(
        None,
        description="How conversations become text, as in train_reward_model; it is saved with the model, from "
        "which reward model and policy start. null: that of the base model",
    )
    lora: LoraSettings | None = Field(None, description="Train adapters only; null: every weight")
    quantization: Quantization | None = Field(None, description=QUANTIZATION)
    gradient_checkpointing: Checkpointing = Field(False, description=CHECKPOINTING)
    pack: bool = Field(
        True,
        description="Compute completions without padding, and the prompt of a pair once where both are imitated; "
        "models with another kind of attention keep padded rows, and the log says so",
    )
    pack_tokens: TokensPerForward | None = Field(
        None,
        ge=1,
        description="Tokens computed at a time; a longer completion with its prompt is computed alone. null: from the "
        "batch per device",
    )
    optimizer: OptimizerSettings = Field(OptimizerSettings(), description=OPTIMIZER)
    schedule: TrainingSchedule = Field(TrainingSchedule(), description=SCHEDULE)
