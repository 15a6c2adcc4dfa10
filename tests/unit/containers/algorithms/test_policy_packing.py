"""Completions are packed only for models whose log-probabilities stay what they are; else the reason is named."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from containers.algorithms import completion_packing
from containers.algorithms.completion_packing import why_padded
from containers.algorithms.policy_packing import plan_policy_packing
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.packing import scoring as packed_scoring
from containers.packing.logps import CompletionPack
from containers.packing.padded import PaddedRows
from containers.packing_traits import PLAIN
from tests.unit.containers.algorithms.test_packing import _SIZES, PACKED, pairs
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages

CONFIG = TrainPolicyConfig(max_prompt_length=90, max_completion_length=10)
BATCH = BatchPlan(global_batch_size=8, per_device_batch_size=2, num_processes=1, gradient_accumulation_steps=4)
EXPERTS = "qwen3_moe"
DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "mistral": ({"sliding_window": 16}, "window of 16 tokens"),
    "gemma2": ({"attn_logit_softcapping": 1.0, "query_pre_attn_scalar": 8, "sliding_window": 200}, "scaled or capped"),
    "granite": ({"logits_scaling": 4.0}, "scaled or capped"),
    EXPERTS: (PACKED[EXPERTS] | {"router_aux_loss_coef": 0.001}, "load of its experts"),
}


def model(family: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**(_SIZES | settings)))


def prompts() -> list[list[int]]:
    return [chosen for chosen, _rejected in pairs()]


@pytest.mark.parametrize("family", PACKED)
def test_completions_of_these_models_are_packed(family: str) -> None:
    settings = PACKED[family] | ({"router_aux_loss_coef": 0.0} if family == EXPERTS else {})
    assert why_padded(model(family, settings), prompts(), CONFIG) == ""


@pytest.mark.parametrize("family", DIFFERENT)
def test_completions_of_these_models_keep_their_rows_and_the_reason_is_named(family: str) -> None:
    settings, words = DIFFERENT[family]
    assert words in why_padded(model(family, settings), prompts(), CONFIG)


@pytest.mark.parametrize("family", ["gemma2", "granite"])
def test_a_model_whose_configuration_says_nothing_shows_it_when_it_is_tried(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion_packing, "packing_traits", lambda content: PLAIN)
    monkeypatch.setattr(packed_scoring, "packing_traits", lambda content: PLAIN)
    assert "apart from padded" in why_padded(model(family, DIFFERENT[family][0]), prompts(), CONFIG)


def test_a_model_without_the_attention_interface_keeps_its_rows() -> None:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "n_ctx": 256, "rotary_dim": 4}
    assert "attention of GPTJForCausalLM" in why_padded(model("gptj", sizes), prompts(), CONFIG)


def test_asking_leaves_the_model_as_it_was() -> None:
    asked = model("qwen3", {})
    asked.train()
    before = asked.config._attn_implementation
    assert why_padded(asked, prompts(), CONFIG) == ""
    assert asked.training
    assert asked.config._attn_implementation == before


@pytest.mark.parametrize(
    ("changes", "family", "kind", "note"),
    [
        ({}, "qwen3", CompletionPack, "Completions are packed, 200 tokens at a time"),
        ({"pack_tokens": 33}, "qwen3", CompletionPack, "Completions are packed, 33 tokens at a time"),
        ({"pack": False}, "qwen3", PaddedRows, ""),
        ({}, "gptj", PaddedRows, "Completions are computed as padded rows: the attention of GPTJForCausalLM"),
    ],
    ids=["default", "budget", "switched off", "not supported"],
)
def test_the_plan_follows_configuration_and_model_and_says_so(
    tmp_path: Path, changes: dict[str, Any], family: str, kind: type, note: str
) -> None:
    config = CONFIG.model_copy(update=changes)
    context = make_context(tmp_path, StageName.TRAIN_POLICY, config, {}, batch=BATCH)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "n_ctx": 256, "rotary_dim": 4}
    cut = plan_policy_packing(context, config, model(family, sizes if family == "gptj" else {}), prompts())
    made = cut([[1, 2]] * 5, [[3]] * 5)
    assert {type(part) for part in made} == {kind}
    events = context.work / "events.jsonl"
    assert note in (events.read_text() if events.exists() else "")
    assert len(made) == (1 if kind is CompletionPack else 3)
