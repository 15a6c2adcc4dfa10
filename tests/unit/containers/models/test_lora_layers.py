"""Adapters sit on the layers that were named, and a name that the model does not have is refused with those it has."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from containers.contracts.configs.parts.training import LoraSettings
from containers.harness.errors import BadConfigError
from containers.models.loading import apply_lora, save_merged
from tests.unit.factories.tiny_policy import tiny_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages


def _adapted(**settings: Any) -> PeftModel:
    model = tiny_causal_model(tiny_tokenizer())
    found = apply_lora(model, LoraSettings(r=4, alpha=8, **settings), task_type="CAUSAL_LM")
    assert isinstance(found, PeftModel)
    return found


def _layers(model: PeftModel) -> set[str]:
    return {name.split(".lora_A")[0].rsplit(".", 1)[-1] for name, _ in model.named_parameters() if "lora_A" in name}


def test_all_linear_layers_get_adapters_unless_some_are_named() -> None:
    every = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert _layers(_adapted()) == every
    assert _layers(_adapted(targets=("q_proj", "v_proj"))) == {"q_proj", "v_proj"}
    assert _layers(_adapted(exclude=("down_proj", "k_proj"))) == every - {"down_proj", "k_proj"}
    assert _layers(_adapted(targets=("q_proj", "v_proj"), exclude=("v_proj",))) == {"q_proj"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"targets": ("qkv_proj",)},
            r"lora\.targets names qkv_proj: Qwen3ForCausalLM has no such linear layer\. It has",
        ),
        ({"exclude": ("lm_head",)}, r"lora\.exclude names lm_head"),
        ({"targets": ("q_proj",), "exclude": ("q_proj",)}, "leaves no layer"),
    ],
)
def test_names_that_would_have_no_effect_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfigError, match=said):
        _adapted(**settings)


def test_rslora_scales_by_the_root_of_the_rank() -> None:
    for use_rslora, scale in ((False, 8 / 4), (True, 8 / math.sqrt(4))):
        model = _adapted(use_rslora=use_rslora)
        layer: Any = model.get_base_model().model.layers[0].self_attn.q_proj
        assert layer.scaling["default"] == pytest.approx(scale)


def test_dropout_is_for_training_alone_and_leaves_the_merged_model_exact(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    model = _adapted(dropout=0.5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    ids = torch.tensor([tokenizer("some text here")["input_ids"]])
    model.train()
    assert not torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
    model.eval()
    wanted = model(input_ids=ids).logits
    merged = save_merged(model, tokenizer, tmp_path / "merged")
    assert torch.allclose(merged(input_ids=ids).logits, wanted, atol=1e-5)
