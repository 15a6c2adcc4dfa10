"""Configuration of build_base_model."""

from typing import Literal

from pydantic import Field, model_validator

from containers.contracts.base import Frozen, Tokens, Width


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
