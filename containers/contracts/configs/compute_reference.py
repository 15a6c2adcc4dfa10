"""Configuration of compute_reference."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen, Tokens, TokensPerForward
from containers.contracts.configs.parts.training import ChatTemplate, Quantization
from containers.contracts.configs.train_dpo import TrainDpoConfig

_OF_TRAIN_DPO = "Leave it out: the run puts that of train_dpo here"


class ComputeReferenceConfig(Frozen):
    """Log-probabilities of the pairs under the model from which train_dpo starts; runs that differ in loss, beta,
    learning rate, adapters' rank or steps share them."""

    stage: Literal["compute_reference"] = "compute_reference"
    pack_tokens: TokensPerForward | None = Field(
        None,
        ge=1,
        description="Tokens computed at a time; a longer pair is computed alone. null: from the batch per device",
    )
    max_length: Tokens = Field(2048, ge=8, description=_OF_TRAIN_DPO)
    chat_template: ChatTemplate | None = Field(None, description=_OF_TRAIN_DPO)
    pack: bool = Field(True, description=_OF_TRAIN_DPO)
    whole_model: bool = Field(
        False, description="Leave it out: whether train_dpo trains every weight, and so keeps them in float32"
    )
    quantization: Quantization | None = Field(None, description=_OF_TRAIN_DPO)
    mismatched: bool = Field(
        False, description="Leave it out: whether the loss is kto, which compares with completions to other prompts"
    )

    def for_training(self, training: TrainDpoConfig) -> "ComputeReferenceConfig":
        """Return this configuration with what must be as in the training."""
        return self.model_copy(
            update={
                "max_length": training.max_length,
                "chat_template": training.chat_template,
                "pack": training.pack,
                "pack_tokens": training.pack_tokens if self.pack_tokens is None else self.pack_tokens,
                "whole_model": training.lora is None,
                "quantization": training.quantization,
                "mismatched": training.loss == "kto",
            }
        )
