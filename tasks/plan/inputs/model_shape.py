"""The numbers of a model's config.json that decide its size, and the parameter counts that follow from them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from containers.contracts.configs.build_base_model import BuildBaseModelConfig
from containers.contracts.configs.parts.training import LoraSettings
from containers.packing_traits import PLAIN, PackingTraits, packing_traits
from tasks.config.errors import ConfigError
from tasks.config.yaml_reader import read_yaml_file

Head = Literal["language", "score"]

# Defaults of transformers for values missing in config.json, if they differ from those below. Kept by hand: the
# configuration classes of transformers import torch if it is installed. A test compares.
_TIED: dict[str, Any] = {"tie_word_embeddings": True}
_GEMMA_3 = {**_TIED, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208}
TYPE_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {**_TIED, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256_000},
    "gemma2": {**_TIED, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256_000},
    "gemma3_text": _GEMMA_3,
    "gemma4_text": _TIED,
    "vaultgemma": _TIED,
    "cohere": _TIED,
    "cohere2": _TIED,
    "smollm3": _TIED,
    "starcoder2": _TIED,
    "ernie4_5": _TIED,
    "lfm2": _TIED,
}
# Types whose blocks have the seven linear layers of `linear_sizes`, under these names and no other.
_PLAIN_TYPES = frozenset({"qwen2", "qwen3", "llama", "mistral", "gemma", "gemma2", "gemma3_text", "smollm3"})
# Types with as many key and value heads as query heads if config.json names only the latter.
UNGROUPED_TYPES = frozenset({"llama", "phi3", "olmo2", "granite", "cohere", "cohere2"})


class ModelShape(BaseModel):
    """Sizes of a decoder with gated feed-forward layers, under the names of transformers' config.json.

    `dtype` is the type of the weights in their files.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    model_type: str
    num_hidden_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    dtype: str = "bfloat16"

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Fill in what config.json leaves out, first with the defaults of the model's type."""
        if not isinstance(data, dict):
            return data
        filled = with_type_defaults(data)
        hidden, heads = filled.get("hidden_size"), filled.get("num_attention_heads")
        # Older architectures leave `head_dim` out: the heads then share the hidden size.
        if not filled.get("head_dim") and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
            filled["head_dim"] = hidden // heads
        # `torch_dtype` before transformers 5; if neither is given, the usual type is assumed.
        filled["dtype"] = filled.get("dtype") or filled.get("torch_dtype") or "bfloat16"
        return filled

    @property
    def is_exact(self) -> bool:
        """Whether the counts below are exact for this architecture; for others they come close."""
        return self.model_type == "qwen3" and not self.attention_bias

    @property
    def query_width(self) -> int:
        """Outputs of the query projection."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        """Outputs of the key projection, and of the value projection."""
        return self.num_key_value_heads * self.head_dim

    @property
    def linear_sizes(self) -> dict[str, tuple[int, int]]:
        """Name → (inputs, outputs) of the seven linear layers of one block; some architectures fuse them."""
        hidden, queries, keys, inner = self.hidden_size, self.query_width, self.key_value_width, self.intermediate_size
        return {
            "q_proj": (hidden, queries),
            "k_proj": (hidden, keys),
            "v_proj": (hidden, keys),
            "o_proj": (queries, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }


def text_part(content: Any) -> Any:
    """The language model's part of a config.json; multimodal models keep it in `text_config`."""
    nested = content.get("text_config") if isinstance(content, dict) else None
    if not isinstance(nested, dict) or content.get("hidden_size"):
        return content
    shared = ("dtype", "torch_dtype", "tie_word_embeddings")
    return {**{name: content[name] for name in shared if content.get(name) is not None}, **_said(nested)}


def read_packing_traits(path: Path) -> PackingTraits:
    """The traits in a config.json, or YAML with the same names; if they cannot be read, none is assumed."""
    try:
        return packing_traits(text_part(_content(path)))
    except (ConfigError, ValueError):
        return PLAIN


def with_type_defaults(content: dict[str, Any]) -> dict[str, Any]:
    """A config.json's content with the defaults of its `model_type` for missing values."""
    model_type = content.get("model_type")
    filled = {**TYPE_DEFAULTS.get(str(model_type), {}), **_said(content)}
    if model_type in UNGROUPED_TYPES and "num_attention_heads" in filled:
        filled.setdefault("num_key_value_heads", filled["num_attention_heads"])
    return filled


def _said(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if value is not None}


def total_parameters(shape: ModelShape, *, head: Head) -> int:
    """Parameters of the whole model, embedding included; `score` replaces the language head by one output.

    Example: Qwen3-8B has 8,190,735,360 with its language head.
    """
    blocks = shape.num_hidden_layers * block_parameters(shape)
    embedding = shape.vocab_size * shape.hidden_size
    if head == "score":
        top = shape.hidden_size
    else:
        top = 0 if shape.tie_word_embeddings else embedding
    return embedding + blocks + shape.hidden_size + top


def lora_parameters(shape: ModelShape, lora: LoraSettings) -> int:
    """Parameters of the adapters; names that the shape does not know (fused layers) count as all layers.

    Example: r 64 on all linear layers of Qwen3-8B is 174,587,904.
    """
    sizes = shape.linear_sizes
    known = [name for name in sizes if not lora.targets or _is_named(name, lora.targets)]
    aimed = [name for name in known or sizes if not _is_named(name, lora.exclude)]
    return shape.num_hidden_layers * sum(lora.r * sum(sizes[name]) for name in aimed)


def unknown_layers(shape: ModelShape, lora: LoraSettings) -> list[str]:
    """Named layers that the model does not have, where its type is one whose layers are known by name."""
    if shape.model_type not in _PLAIN_TYPES:
        return []
    return [
        name for name in (*lora.targets, *lora.exclude) if not any(_is_named(own, [name]) for own in shape.linear_sizes)
    ]


def _is_named(layer: str, names: Iterable[str]) -> bool:
    """Whether one of the names, which may have parts before (`self_attn.q_proj`), is that of the layer."""
    return any(name.rsplit(".", 1)[-1] == layer for name in names)


def multiplied_parameters(shape: ModelShape) -> int:
    """Weights that a token is multiplied with, without embedding lookup and head."""
    return shape.num_hidden_layers * _linear_parameters_of_block(shape)


def shape_of_built_model(config: BuildBaseModelConfig, *, vocabulary_size: int) -> ModelShape:
    """The shape of the model that build_base_model makes; its embedding is also its head."""
    own = {"model_type": "qwen3", "tie_word_embeddings": True, "dtype": "float32"}
    sizes = {"num_hidden_layers": config.num_layers, "vocab_size": vocabulary_size}
    # The other sizes have the same names.
    return ModelShape.model_validate({**config.model_dump(), **own, **sizes})


def read_model_shape(path: Path) -> ModelShape:
    """The shape in a config.json (or YAML with the same names); of a multimodal model, only its language model's.

    Raises:
        ConfigError: the file cannot be read, or lacks a number.
    """
    content = _content(path)
    try:
        return ModelShape.model_validate(text_part(content))
    except ValidationError as error:
        keys = ", ".join(f"`{'.'.join(map(str, item['loc']))}`" for item in error.errors())
        raise ConfigError(
            f"{path} does not describe a decoder language model; missing or wrong: {keys}. Give the config.json "
            f"beside the model's weights."
        ) from error


def _content(path: Path) -> Any:
    if path.suffix in (".yaml", ".yml"):
        return read_yaml_file(path, shown=str(path))
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path.absolute()} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no valid JSON: {error}.") from error


def block_parameters(shape: ModelShape) -> int:
    """Parameters of one block: its linear layers and norms."""
    return _linear_parameters_of_block(shape) + 2 * shape.hidden_size + 2 * shape.head_dim


def _linear_parameters_of_block(shape: ModelShape) -> int:
    return sum(inputs * outputs for inputs, outputs in shape.linear_sizes.values())
