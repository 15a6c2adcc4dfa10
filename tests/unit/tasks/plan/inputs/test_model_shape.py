"""The plan promises memory and parameters before a GPU is rented; the counts must be those of the real models."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from containers.contracts.configs.build_base_model import BuildBaseModelConfig
from containers.contracts.configs.parts.training import LoraSettings
from tasks.config.errors import ConfigError
from tasks.config.loading import config_files
from tasks.plan.inputs.model_shape import (
    TYPE_DEFAULTS,
    UNGROUPED_TYPES,
    ModelShape,
    lora_parameters,
    read_model_shape,
    read_packing_traits,
    shape_of_built_model,
    total_parameters,
)

# config.json of Qwen/Qwen3-8B as published, without the fields that do not decide its size.
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}


# config.json of google/gemma-3-1b-it as published: not a word of tie_word_embeddings, which Gemma's are.
GEMMA_3_1B = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 256,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "sliding_window": 512,
    "torch_dtype": "bfloat16",
    "vocab_size": 262144,
}
# That of google/gemma-3-4b-it: the text's part is nested, and leaves out what is its type's default.
GEMMA_3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "torch_dtype": "float16",
    "vision_config": {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27},
}


def test_qwen3_8b_has_8_19_billion_parameters_and_174_6_million_in_adapters(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    shape = read_model_shape(tmp_path / "config.json")
    assert total_parameters(shape, head="language") == 8_190_735_360
    assert lora_parameters(shape, LoraSettings(r=64)) == 174_587_904
    assert shape.is_exact


def test_the_shipped_shape_is_the_published_one() -> None:
    (shipped,) = (path for path in config_files("model_shapes") if path.stem == "qwen3-8b")
    assert read_model_shape(shipped) == ModelShape.model_validate(QWEN3_8B)


def test_the_shipped_small_shape_has_the_published_596_million_parameters() -> None:
    (shipped,) = (path for path in config_files("model_shapes") if path.stem == "qwen3-0.6b")
    assert total_parameters(read_model_shape(shipped), head="language") == 596_049_920


def test_the_tiny_model_of_the_demo_has_455_thousand_parameters() -> None:
    shape = shape_of_built_model(BuildBaseModelConfig(), vocabulary_size=478)
    assert total_parameters(shape, head="language") == 455_168


@pytest.mark.stages
@pytest.mark.parametrize("tied", [True, False])
def test_counts_are_those_of_the_real_modules(tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    settings: dict[str, Any] = {
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 100,
        "tie_word_embeddings": tied,
    }
    shape = ModelShape(model_type="qwen3", **settings)
    config = transformers.Qwen3Config(**settings, pad_token_id=0)

    causal = transformers.Qwen3ForCausalLM(config)
    assert sum(item.numel() for item in causal.parameters()) == total_parameters(shape, head="language")

    config.num_labels = 1
    scoring = transformers.Qwen3ForSequenceClassification(config)
    assert sum(item.numel() for item in scoring.parameters()) == total_parameters(shape, head="score")

    adapted = peft.get_peft_model(scoring, peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules="all-linear"))
    trained = sum(item.numel() for item in adapted.parameters() if item.requires_grad)
    assert trained == lora_parameters(shape, LoraSettings(r=4)) + shape.hidden_size


@pytest.mark.stages
@pytest.mark.parametrize(
    ("content", "num_parameters"), [(GEMMA_3_1B, 999_885_952), (GEMMA_3_4B, 3_880_263_168)], ids=["1B", "4B"]
)
def test_what_a_gemma_file_leaves_out_is_the_default_of_its_type(
    tmp_path: Path, content: dict[str, Any], num_parameters: int
) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(content))
    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(tmp_path)
        real = transformers.AutoModelForCausalLM.from_config(config.get_text_config())
    assert sum(item.numel() for item in real.parameters()) == num_parameters
    shape = read_model_shape(tmp_path / "config.json")
    assert shape.tie_word_embeddings
    assert total_parameters(shape, head="language") == pytest.approx(num_parameters, rel=1e-3)
    assert shape.dtype == content["torch_dtype"]
    assert not shape.is_exact


def test_a_file_that_says_otherwise_than_its_types_default_is_believed() -> None:
    assert not ModelShape.model_validate({**GEMMA_3_1B, "tie_word_embeddings": False}).tie_word_embeddings
    assert ModelShape.model_validate({**QWEN3_8B, "tie_word_embeddings": True}).tie_word_embeddings
    assert not ModelShape.model_validate({**QWEN3_8B, "tie_word_embeddings": None}).tie_word_embeddings


def test_a_head_dim_that_is_a_types_default_is_not_made_from_the_hidden_size() -> None:
    content = {name: value for name, value in GEMMA_3_1B.items() if name != "head_dim"}
    assert ModelShape.model_validate({**content, "hidden_size": 2304}).head_dim == 256


@pytest.mark.stages
def test_the_defaults_of_a_type_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    assert {"gemma3_text", "cohere", "smollm3"} <= set(TYPE_DEFAULTS)
    for model_type, defaults in TYPE_DEFAULTS.items():
        config = transformers.AutoConfig.for_model(model_type).get_text_config()
        assert {name: getattr(config, name) for name in defaults} == defaults, model_type
    silent = [name for name in ("llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2") if name not in TYPE_DEFAULTS]
    for model_type in silent:
        assert not transformers.AutoConfig.for_model(model_type).tie_word_embeddings, model_type


@pytest.mark.stages
def test_types_without_grouped_heads_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    content = {name: value for name, value in QWEN3_8B.items() if name != "num_key_value_heads"}
    for model_type in UNGROUPED_TYPES:
        config = transformers.AutoConfig.for_model(model_type, num_attention_heads=6, hidden_size=48)
        assert config.num_key_value_heads == 6, model_type
        assert ModelShape.model_validate({**content, "model_type": model_type}).num_key_value_heads == 32
    with pytest.raises(ValidationError, match="num_key_value_heads"):
        ModelShape.model_validate(content)


def test_the_window_of_a_nested_config_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_3_4B))
    assert read_packing_traits(tmp_path / "config.json").sliding_window == 1024


def test_an_architecture_without_head_dim_shares_the_hidden_size_among_its_heads() -> None:
    content = {key: value for key, value in QWEN3_8B.items() if key != "head_dim"}
    shape = ModelShape.model_validate({**content, "model_type": "llama", "num_attention_heads": 64})
    assert shape.head_dim == 64
    assert not shape.is_exact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "missing or wrong: `model_type`"),
        ("{", "is no valid JSON"),
        ('{"model_type": "bert", "hidden_size": "x"}', "`hidden_size`"),
    ],
)
def test_a_file_that_is_no_model_config_says_what_is_wanted(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=expected):
        read_model_shape(tmp_path / "config.json")


def test_a_missing_model_config_is_named_in_full(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path / "config.json")):
        read_model_shape(tmp_path / "config.json")
