"""The plan promises memory and parameters before a GPU is rented; the counts must be those of the real models."""

import json
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.stage_configs import BuildBaseModelConfig
from flows.config_errors import ConfigError
from flows.config_loading import config_files
from flows.model_shape import (
    ModelShape,
    lora_parameters,
    read_model_shape,
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


def test_qwen3_8b_has_8_19_billion_parameters_and_174_6_million_in_adapters(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    shape = read_model_shape(tmp_path / "config.json")
    assert total_parameters(shape, head="language") == 8_190_735_360
    assert lora_parameters(shape, r=64) == 174_587_904
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
    assert trained == lora_parameters(shape, r=4) + shape.hidden_size


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
