"""Pairs are packed only for models that score them as they score single rows; for others the reason is named."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification

from containers.algorithms import reward_model_packing
from containers.algorithms.reward_model_packing import plan_packing, why_padded
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.names import StageName
from containers.data.pairs import Row
from containers.packing_traits import PLAIN
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages

_SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "num_labels": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Wide enough that attention weighs its tokens unlike.
    "initializer_range": 0.5,
}
PACKED: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen2": {},
    "llama": {"rope_theta": 5_000_000.0},
    "mistral": {"sliding_window": None},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
PADDED: dict[str, tuple[dict[str, Any], str]] = {
    "mistral": ({"sliding_window": 16}, "window of 16 tokens"),
    "gemma2": ({"attn_logit_softcapping": 1.0, "query_pre_attn_scalar": 8}, "caps its logits"),
}


def model(family: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(CONFIG_MAPPING[family](**(_SIZES | settings)))


def pairs() -> list[tuple[list[int], list[int]]]:
    rng = random.Random(0)  # noqa: S311

    def ids(count: int) -> list[int]:
        return [rng.randrange(5, 64) for _ in range(count)]

    prompts = [ids(length) for length in (10, 20, 30, 60)]
    return [(prompt + ids(12), prompt + ids(7)) for prompt in prompts]


def reason(family: str, settings: dict[str, Any], **config: Any) -> str:
    found = TrainRewardModelConfig(**config)
    return why_padded(model(family, settings), pairs(), found, pack_tokens=200)


@pytest.mark.parametrize("family", PACKED)
def test_these_models_score_packed_pairs_as_they_score_rows(family: str) -> None:
    assert reason(family, PACKED[family]) == ""


@pytest.mark.parametrize("family", PADDED)
def test_models_whose_attention_does_more_than_a_mask_keep_their_rows(family: str) -> None:
    settings, words = PADDED[family]
    assert words in reason(family, settings)


@pytest.mark.parametrize("family", PADDED)
def test_a_model_whose_configuration_says_nothing_shows_it_when_it_is_tried(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_model_packing, "packing_traits", lambda content: PLAIN)
    assert "apart from padded rows" in reason(family, PADDED[family][0])


def test_a_model_without_the_attention_interface_keeps_its_rows() -> None:
    gpt = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "n_ctx": 256}
    assert "attention" in reason("gptj", gpt | {"rotary_dim": 4})


def test_a_penalty_on_whole_batches_keeps_the_rows() -> None:
    assert "whole batch" in reason("qwen3", {}, zero_sum_penalty=0.1)


def test_asking_leaves_the_model_as_it_was() -> None:
    asked = model("qwen3", {})
    asked.train()
    before = asked.config._attn_implementation
    assert why_padded(asked, pairs(), TrainRewardModelConfig(), pack_tokens=50) == ""
    assert asked.training
    assert asked.config._attn_implementation == before


def test_the_note_says_what_packing_saves_in_tokens_that_can_be_counted(tmp_path: Path) -> None:
    config = TrainRewardModelConfig(pack_tokens=200)
    context = make_context(tmp_path, StageName.TRAIN_REWARD_MODEL, config, {})
    # Prompts of 10, 20, 30 and 60 tokens, answers of 12 and 7 that differ from their first token on.
    prompts = [[10] * length for length in (10, 20, 30, 60)]
    rows: list[Row] = [{"chosen_ids": [*ids, *[11] * 12], "rejected_ids": [*ids, *[12] * 7]} for ids in prompts]
    plan_packing(context, config, model("qwen3", {}), rows)
    packed, apart = 120 + 4 * 19, 2 * 120 + 4 * 19
    wanted = f"so an epoch is {packed} tokens; with each answer in its own row it would be {apart}"
    assert wanted in (context.work / "events.jsonl").read_text()
