"""Reward models of other architectures than Qwen3 train with LoRA, and score the same after a reload, head included."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from containers.contracts.configs.parts.training import TrainingSchedule
from containers.scoring.scorer import RewardScorer
from containers.stages import train_reward_model
from tests.unit.factories.reward_model_factory import (
    logged_scores,
    reward_model_context,
    transformers_scores,
    values_of,
)
from tests.unit.factories.tiny_policy import CHATML, tiny_tokenizer

pytestmark = pytest.mark.stages

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
}
FAMILIES: dict[str, Callable[[Any], PreTrainedModel]] = {
    "llama": lambda names: LlamaForCausalLM(LlamaConfig(**names, attention_bias=False)),
    # Yi's models are Llama's with another base of the rotation and a wider vocabulary.
    "yi": lambda names: LlamaForCausalLM(LlamaConfig(**names, rope_theta=5_000_000.0, rms_norm_eps=1e-5)),
    # The window is shorter than every conversation here, so that it is at work.
    "mistral": lambda names: MistralForCausalLM(MistralConfig(**names, sliding_window=32)),
    "qwen2": lambda names: Qwen2ForCausalLM(Qwen2Config(**names, tie_word_embeddings=True)),
}


@pytest.mark.parametrize("use_cls", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_and_scores_the_same_after_a_reload(tmp_path: Path, family: str, use_cls: bool) -> None:
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    names = {
        **_SIZES,
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    FAMILIES[family](names).save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    schedule = TrainingSchedule(max_steps=3, eval_steps=3)
    context = reward_model_context(tmp_path, use_cls=use_cls, schedule=schedule)
    values = values_of(train_reward_model.run(context))
    assert values["reload_max_difference"] <= 1e-4
    conversations, logged = logged_scores(context)
    assert max(logged) - min(logged) > 1e-3
    merged = context.output / "merged"
    assert transformers_scores(merged, conversations) == pytest.approx(logged, abs=1e-4)
    for copy, name in (("merged/model", "score.weight"), ("adapter/adapter_model", "base_model.model.score.weight")):
        assert name in load_file(context.output / f"{copy}.safetensors")
    scorer = RewardScorer.load(merged, device="cpu", dtype=torch.float32, max_length=256, batch_size=5)
    assert scorer.score(conversations) == pytest.approx(logged, abs=1e-4)
    assert (AutoTokenizer.from_pretrained(merged).chat_template == CHATML) is not use_cls
