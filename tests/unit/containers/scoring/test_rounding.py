"""How far rounding may move scores: the bound by layers, and the trial on a model that enlarges small errors."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from containers.contracts.configs.parts.training import LoraSettings
from containers.models.adapters import apply_lora
from containers.scoring.rounding import allowed_by_trial, allowed_difference, turn_last_bits

pytestmark = pytest.mark.stages


def test_the_allowed_difference_grows_with_scores_and_layers_in_bfloat16_only() -> None:
    assert allowed_difference(torch.float32, [100.0], num_layers=36, is_rounded=True) == 1e-4
    assert allowed_difference(torch.bfloat16, [0.1], num_layers=2) == pytest.approx(0.02)
    assert allowed_difference(torch.bfloat16, [-10.0, 3.0], num_layers=2) == pytest.approx(0.2)
    assert allowed_difference(torch.bfloat16, [-10.0, 3.0], num_layers=36) == pytest.approx(0.66, abs=0.005)
    assert allowed_difference(torch.bfloat16, [2.0], num_layers=36, is_rounded=True) == pytest.approx(0.265, abs=0.001)


@pytest.fixture
def deep_model() -> PeftModel:
    """28 layers of random weights, three times as large as usual, in bfloat16, with adapters of float32."""
    config = Qwen3Config(
        vocab_size=300,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=28,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_labels=1,
        pad_token_id=0,
        initializer_range=0.06,
    )
    model = Qwen3ForSequenceClassification(config).to(torch.bfloat16)
    adapted = apply_lora(model, LoraSettings(r=8, alpha=16), task_type="SEQ_CLS").eval()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return adapted


@torch.no_grad()
def scores_of(model: Any) -> list[float]:
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(1, 300, (1, 40), generator=generator) for _ in range(16)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return [float(model(input_ids=text).logits) for text in texts]


def largest(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_trial_explains_a_merge_that_was_rounded_and_no_other_model(
    deep_model: PeftModel, dtype: torch.dtype
) -> None:
    trained = scores_of(deep_model)
    merged: Any = deep_model.merge_and_unload()
    merged.to(dtype)
    before = {name: tensor.clone() for name, tensor in merged.state_dict().items()}
    allowed = allowed_by_trial(lambda seed: turn_last_bits(merged, [seed]), lambda: scores_of(merged))
    assert all(torch.equal(tensor, before[name]) for name, tensor in merged.state_dict().items())
    assert 0 < largest(trained, scores_of(merged)) <= allowed
    merged.score.weight.data.neg_()
    assert largest(trained, scores_of(merged)) > 2 * allowed


def test_a_trial_that_fails_leaves_the_model_as_it_was(deep_model: PeftModel) -> None:
    merged: Any = deep_model.merge_and_unload()
    before = {name: tensor.clone() for name, tensor in merged.state_dict().items()}
    asked = iter([[1.0]])
    with pytest.raises(StopIteration):
        allowed_by_trial(lambda seed: turn_last_bits(merged, [seed]), lambda: next(asked))
    assert all(torch.equal(tensor, before[name]) for name, tensor in merged.state_dict().items())
