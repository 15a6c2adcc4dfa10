"""Frozen weights in 4 and 8 bits, by the real library: adapters learn, and what is published is plain and the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, Quantization, TrainingSchedule
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.harness.errors import MissingPrerequisiteError
from containers.models import quantized
from containers.models.loading import apply_lora, load_causal_model, load_tokenizer, parameter_counts, save_merged
from containers.models.quantized import is_quantized, num_values, quantized_parts
from containers.models.shared_base import adapted_classifier, sharing_classifier
from containers.scoring.scorer import RewardScorer
from containers.stages import train_reward_model, train_sft
from tests.unit.factories.adapter_factory import make_adapter
from tests.unit.factories.reward_model_factory import reward_model_context, values_of
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

pytest.importorskip("bitsandbytes")

BOTH: tuple[Quantization, ...] = ("nf4", "int8")
# How far a quantized tiny model may be from itself in float32, of its logits' spread.
APART = {"nf4": 0.6, "int8": 0.1}


def _loaded(folder: Path, quantization: Quantization | None) -> Any:
    return load_causal_model(folder, dtype=torch.float32, device="cpu", quantization=quantization)


@pytest.mark.parametrize("quantization", BOTH)
def test_linear_layers_are_quantized_and_heads_and_embeddings_are_not(
    tmp_path: Path, quantization: Quantization
) -> None:
    folder = save_causal_model(tmp_path / "model", scale=0.05)
    plain, model = _loaded(folder, None), _loaded(folder, quantization)
    assert is_quantized(model) and not is_quantized(plain)
    block = model.model.layers[0]
    weight = block.self_attn.q_proj.weight
    # Eight 4-bit weights lie in one number of the computing type, which FSDP divides; int8 ones one by one.
    assert weight.dtype == (torch.float32 if quantization == "nf4" else torch.int8)
    assert num_values(weight) == weight.numel() * (8 if quantization == "nf4" else 1)
    assert model.lm_head.weight.dtype == model.model.embed_tokens.weight.dtype == torch.float32
    assert parameter_counts(model)[1] == parameter_counts(plain)[1], "packed weights count as what they stand for"
    ids = torch.arange(20)[None]
    with torch.no_grad():
        wanted, found = plain(input_ids=ids).logits, model(input_ids=ids).logits
    assert 0 < float((found - wanted).std()) < APART[quantization] * float(wanted.std())


@pytest.mark.parametrize("quantization", BOTH)
def test_the_published_model_is_plain_and_gives_what_the_quantized_one_gave(
    tmp_path: Path, quantization: Quantization
) -> None:
    folder = save_causal_model(tmp_path / "model", scale=0.05)
    adapted = apply_lora(_loaded(folder, quantization), LoraSettings(r=4, alpha=8), task_type="CAUSAL_LM")
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    adapted.eval()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        wanted = adapted(input_ids=ids).logits
    save_merged(adapted, load_tokenizer(folder), tmp_path / "merged")
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())
    assert {weight.dtype for weight in load_file(tmp_path / "merged" / "model.safetensors").values()} == {torch.float32}
    published = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    with torch.no_grad():
        found = published(input_ids=ids).logits
    assert not is_quantized(published)
    # int8 layers quantize their inputs too; the published model does not.
    tolerance = 1e-4 if quantization == "nf4" else 0.05 * float(wanted.std())
    assert float((found - wanted).abs().max()) < tolerance


@pytest.mark.parametrize("quantization", BOTH)
def test_a_reward_model_shares_the_quantized_weights_of_the_policy(tmp_path: Path, quantization: Quantization) -> None:
    made = make_adapter(tmp_path)
    base = _loaded(made.base, quantization)
    parts = list(map(id, quantized_parts(base)))
    classifier = sharing_classifier(base)
    own, other = (model.model.layers[0].mlp.up_proj for model in (base, classifier))
    assert own is not other and own.weight is other.weight
    assert list(map(id, quantized_parts(classifier))) == parts
    tokenizer = load_tokenizer(made.merged)
    model = adapted_classifier(base, made.folder)
    model.get_base_model().config.pad_token_id = tokenizer.pad_token_id
    scorer = RewardScorer(model, tokenizer, max_length=200, batch_size=2)
    talks = [[{"role": "user", "content": "hello"}, {"role": "assistant", "content": "a" * n}] for n in (3, 9)]
    before = scorer.score(talks)
    policy = apply_lora(base, LoraSettings(r=4, alpha=8), task_type="CAUSAL_LM")
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    policy(input_ids=torch.arange(9)[None])
    assert scorer.score(talks) == before, "the policy's own adapters change no score"


@pytest.mark.parametrize("quantization", BOTH)
def test_fine_tuning_on_quantized_weights_learns_and_publishes_a_plain_model(
    tmp_path: Path, quantization: Quantization
) -> None:
    config = TrainSftConfig(
        max_length=256,
        lora=LoraSettings(r=8, alpha=32),
        quantization=quantization,
        optimizer=OptimizerSettings(learning_rate=1e-2),
        schedule=TrainingSchedule(max_steps=12, eval_steps=6),
    )
    inputs = {
        "pairs": write_pairs(tmp_path / "pairs", colour_rows(48)),
        "start_model": save_causal_model(tmp_path / "start", scale=0.02),
    }
    context = make_context(tmp_path, StageName.TRAIN_SFT, config, inputs)
    train_sft.run(context)
    points = [json.loads(line)["values"] for line in (context.output / "curves.jsonl").read_text().splitlines()]
    losses = [point["loss"] for point in points if "loss" in point]
    assert losses[-1] < losses[0] - 0.25
    published = AutoModelForCausalLM.from_pretrained(context.output / "model")
    assert not is_quantized(published) and not isinstance(published, PeftModel)


@pytest.mark.parametrize("quantization", BOTH)
def test_a_reward_model_trained_on_quantized_weights_holds_when_it_is_loaded_again(
    tmp_path: Path, quantization: Quantization
) -> None:
    context = reward_model_context(tmp_path, quantization=quantization, lora=LoraSettings(r=8, alpha=16))
    values = values_of(train_reward_model.run(context))
    assert values["validation_accuracy"] > 0.8
    assert values["reload_max_difference"] < (1e-4 if quantization == "nf4" else 1.0)
    assert (context.output / "adapter" / "adapter_config.json").is_file()


def test_a_missing_library_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "find_spec", lambda name: None)
    with pytest.raises(MissingPrerequisiteError, match="bitsandbytes is not installed here"):
        quantized.loading_arguments("nf4", dtype=torch.float32, device="cpu")
    assert quantized.loading_arguments(None, dtype=torch.float32, device="cpu") == {}
