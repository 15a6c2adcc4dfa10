"""Peculiarities of policies on the hub: what a model's files say must not bend what is sampled, nor end a run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    PreTrainedModel,
    SiglipVisionConfig,
)

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.scoring.scorer import score_head_sha256
from containers.stages import train_policy, train_sft
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import evaluated_policy, save_causal_model, save_reward_model, tiny_tokenizer

pytestmark = pytest.mark.stages

CONFIG = TrainPolicyConfig(
    num_generations=4,
    max_prompt_length=64,
    max_completion_length=8,
    lora=LoraSettings(r=4, alpha=8),
    gradient_checkpointing=False,
    optimizer=OptimizerSettings(learning_rate=1e-3),
    schedule=TrainingSchedule(max_steps=2, save_steps=2),
)
JUDGING = EvaluatePolicyConfig(
    max_prompts=None, max_prompt_length=64, max_completion_length=8, completions_per_prompt=2
)
# meta-llama/Llama-2-7b-chat-hf's first generation_config.json, but for the ids.
LLAMA_2: dict[str, Any] = {
    "do_sample": False,
    "temperature": 0.9,
    "top_p": 0.6,
    "max_length": 4096,
    "pad_token_id": None,
}
# Qwen/Qwen3-8B's, and what others have.
QWEN3: dict[str, Any] = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
BENDING: tuple[dict[str, Any], ...] = (
    QWEN3,
    {"do_sample": True, "min_p": 0.9, "repetition_penalty": 1.3, "typical_p": 0.2},
    {"no_repeat_ngram_size": 1, "bad_words_ids": [[token] for token in range(100, 200)]},
    {"min_new_tokens": 8, "suppress_tokens": list(range(100))},
    {"forced_eos_token_id": 258, "begin_suppress_tokens": list(range(250)), "exponential_decay_length_penalty": [1, 9]},
    {"num_beams": 2, "use_cache": False},
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    merged = save_reward_model(folder / "reward_model" / "merged")
    return {
        "certificate": write_certificate(folder / "certificate", score_head_sha256=score_head_sha256(merged)),
        "prompts": write_prompts(
            folder / "pairs", train=["Hi", "Which one?", "No"], evaluation=["Why?", "Tell me more"]
        ),
        "reward_model": folder / "reward_model",
    }


def write_generation_config(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The file beside the weights, with the ids that tiny models have."""
    path = folder / "generation_config.json"
    ids = {name: value for name, value in json.loads(path.read_text()).items() if name.endswith("_token_id")}
    path.write_text(json.dumps({**ids, **settings}))
    return {**ids, **settings}


def trained(tmp_path: Path, inputs: Mapping[str, Path], start: Path, **changes: Any) -> StageContext:
    config = CONFIG.model_copy(update=changes)
    context = make_context(tmp_path, StageName.TRAIN_POLICY, config, {**inputs, "start_model": start})
    train_policy.run(context)
    return context


def judged(tmp_path: Path, inputs: Mapping[str, Path], start: Path, policy: Path, **changes: Any) -> StageContext:
    named = {**inputs, "start_model": start, "policy": policy}
    _, context = evaluated_policy(tmp_path, JUDGING.model_copy(update=changes), named)
    return context


def completions_of(context: StageContext) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(context.output / "completions.parquet").to_pylist()
    return rows


def bloom(ids: dict[str, Any]) -> PreTrainedModel:
    """Its positions have no end, and its config no word of them."""
    return BloomForCausalLM(BloomConfig(**ids, hidden_size=32, n_layer=2, n_head=4))


def gemma_3(ids: dict[str, Any]) -> PreTrainedModel:
    """As Gemma 3 from 4B on: the language model's numbers lie in `text_config`, beside those of the images."""
    text = Gemma3TextConfig(
        **ids,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
    )
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    config = Gemma3Config(text_config=text, vision_config=vision, image_token_index=5, mm_tokens_per_image=4)
    return Gemma3ForConditionalGeneration(config)


def save_start(folder: Path, model: Any) -> Path:
    tokenizer = tiny_tokenizer()
    ids = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    torch.manual_seed(0)
    model(ids).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("made", [bloom, gemma_3])
def test_a_policy_whose_config_names_its_positions_elsewhere_or_nowhere_is_trained_and_judged(
    tmp_path: Path, inputs: dict[str, Path], made: Any
) -> None:
    start = save_start(tmp_path / "start", made)
    policy = trained(tmp_path, inputs, start).output
    rows = completions_of(judged(tmp_path, inputs, start, policy))
    assert len(rows) == 4


def test_positions_of_a_nested_config_bound_the_lengths(tmp_path: Path, inputs: dict[str, Path]) -> None:
    start = save_start(tmp_path / "start", gemma_3)
    with pytest.raises(BadConfigError, match=r"264 tokens; the start model has 256 positions"):
        trained(tmp_path, inputs, start, max_completion_length=200)


def run_with(
    tmp_path: Path, inputs: Mapping[str, Path], settings: Mapping[str, Any], engine: Any
) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Completions and trained weights of a run from a model with this generation_config.json, which stays as it is."""
    start = save_causal_model(tmp_path / "start", seed=3)
    written = write_generation_config(start, {**settings, "eos_token_id": [258, *range(100, 200)], "pad_token_id": 256})
    context = trained(tmp_path, inputs, start, pack=engine == "shared_prompts", rollout_engine=engine)
    saved = json.loads((context.output / "model" / "generation_config.json").read_text())
    assert {name: saved.get(name) for name in written} == written
    return completions_of(context), load_file(context.output / "model" / "model.safetensors")


@pytest.mark.parametrize("engine", ["shared_prompts", "transformers"])
def test_a_policy_is_sampled_from_its_whole_distribution_whatever_its_files_say(
    tmp_path: Path, inputs: dict[str, Path], engine: str
) -> None:
    plain, weights = run_with(tmp_path / "plain", inputs, {}, engine)
    assert any(row["num_tokens"] < 8 for row in plain)
    assert any(row["num_tokens"] == 8 for row in plain)
    for number, settings in enumerate(BENDING):
        bent, bent_weights = run_with(tmp_path / f"bent {number}", inputs, settings, engine)
        assert bent == plain, settings
        assert all(torch.equal(weights[name], bent_weights[name]) for name in weights), settings


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_policy_is_judged_by_its_whole_distribution_whatever_its_files_say(
    tmp_path: Path, inputs: dict[str, Path], temperature: float
) -> None:
    found = []
    for number, settings in enumerate(({}, *BENDING)):
        folder = tmp_path / str(number)
        start = save_causal_model(folder / "start", seed=3)
        policy = save_causal_model(folder / "policy" / "model", seed=4).parent
        for model in (start, policy / "model"):
            write_generation_config(model, settings)
        found.append(completions_of(judged(folder, inputs, start, policy, temperature=temperature)))
    assert [rows == found[0] for rows in found] == [True] * len(found)


@pytest.mark.parametrize("lora", [LoraSettings(r=4, alpha=8), None])
def test_a_generation_config_that_could_not_be_saved_is_mended_before_training_and_noted(
    tmp_path: Path, inputs: dict[str, Path], lora: LoraSettings | None
) -> None:
    start = save_causal_model(tmp_path / "start", seed=3)
    write_generation_config(start, LLAMA_2)
    context = trained(tmp_path, inputs, start, lora=lora)
    saved = json.loads((context.output / "model" / "generation_config.json").read_text())
    assert (saved["do_sample"], saved["temperature"], saved["top_p"]) == (True, 0.9, 0.6)
    assert saved["eos_token_id"] == 258
    notes = (context.work / "events.jsonl").read_text()
    assert "generation_config.json contradicts itself (temperature, top_p)" in notes
    assert "do_sample is now true" in notes


def test_a_pad_token_below_zero_is_taken_out_and_the_rest_of_a_generation_config_stays(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    start = save_causal_model(tmp_path / "start", seed=3)
    write_generation_config(start, {**LLAMA_2, "do_sample": True, "pad_token_id": -1})
    context = trained(tmp_path, inputs, start)
    saved = json.loads((context.output / "model" / "generation_config.json").read_text())
    assert (saved["do_sample"], saved["temperature"], saved["top_p"]) == (True, 0.9, 0.6)
    assert "token ids below zero were removed" in (context.work / "events.jsonl").read_text()


def test_a_generation_config_that_nothing_mends_keeps_its_token_ids(tmp_path: Path, inputs: dict[str, Path]) -> None:
    start = save_causal_model(tmp_path / "start", seed=3)
    write_generation_config(start, {**LLAMA_2, "length_penalty": 2.0})
    context = trained(tmp_path, inputs, start)
    saved = json.loads((context.output / "model" / "generation_config.json").read_text())
    assert not {"temperature", "top_p", "length_penalty"} & {name for name, value in saved.items() if value is not None}
    assert saved["eos_token_id"] == 258
    assert "only its token ids are kept" in (context.work / "events.jsonl").read_text()


def test_supervised_training_too_ends_with_a_generation_config_that_could_not_be_saved(tmp_path: Path) -> None:
    start = save_causal_model(tmp_path / "start", seed=3)
    write_generation_config(start, LLAMA_2)
    named = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(16)), "start_model": start}
    config = TrainSftConfig(max_length=256, schedule=TrainingSchedule(max_steps=2, eval_steps=2))
    context = make_context(tmp_path, StageName.TRAIN_SFT, config, named)
    train_sft.run(context)
    saved = json.loads((context.output / "model" / "generation_config.json").read_text())
    assert (saved["do_sample"], saved["temperature"], saved["top_p"]) == (True, 0.9, 0.6)
