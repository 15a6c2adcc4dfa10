"""Models and tokenizers that would train or score silently wrong are refused where they are loaded."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, AutoTokenizer

from containers.contracts.configs.parts.training import LoraSettings
from containers.contracts.hardware import GpuProfile
from containers.distributed.devices import compute_device, compute_dtype
from containers.harness.errors import BadConfigError, DivergedError, MissingPrerequisiteError
from containers.models.loading import (
    apply_lora,
    load_causal_model,
    load_new_reward_model,
    load_reward_model,
    load_tokenizer,
    parameter_counts,
    save_adapter,
    save_merged,
)
from tests.unit.factories.pretended_gpu import move_to_gpu, pretended_gpu
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model, tiny_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages

LORA = LoraSettings(r=2, alpha=4)


def test_a_tokenizer_without_chat_template_is_refused_with_the_way_out(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(BadConfigError, match=r"no chat template.*chat_template\.jinja"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("template", ["{% for m in %}", "{{ messages[0]['content'].missing() }}", "{{ 1 / 0 }}"])
def test_a_chat_template_that_does_not_render_is_refused(tmp_path: Path, template: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(BadConfigError, match="does not render two questions with their answers"):
        load_tokenizer(tmp_path)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisiteError, match="no tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("pad_token", [None, "<|im_end|>"])
def test_the_pad_token_becomes_another_one_than_the_end_of_sequence(tmp_path: Path, pad_token: str | None) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = pad_token
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).pad_token == "<|endoftext|>"


def test_a_pad_token_that_differs_is_left_alone_and_padding_is_on_the_right(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = "<|im_start|>"
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert (loaded.pad_token, loaded.padding_side) == ("<|im_start|>", "right")


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisiteError, match=r"no config\.json"):
        load_causal_model(tmp_path, dtype=torch.float32, device="cpu")


def test_a_model_with_fewer_weights_than_its_config_is_refused(tmp_path: Path) -> None:
    save_causal_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3, "layer_types": None}))
    with pytest.raises(MissingPrerequisiteError, match=r"lacks weights.*model\.layers\.2.* more"):
        load_causal_model(tmp_path, dtype=torch.float32, device="cpu")
    with pytest.raises(MissingPrerequisiteError, match=r"lacks weights.*model\.layers\.2.* more"):
        load_new_reward_model(tmp_path, pad_token_id=0, seed=0, dtype=torch.float32, device="cpu")


def test_code_that_lies_in_a_model_folder_is_not_run(tmp_path: Path) -> None:
    save_causal_model(tmp_path)
    canary = tmp_path / "canary"
    (tmp_path / "evil.py").write_text(f"open({str(canary)!r}, 'w').close()\nclass Evil: pass\nclass EvilConfig: pass\n")
    config = json.loads((tmp_path / "config.json").read_text())
    auto_map = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "auto_map": auto_map, "model_type": "evil"}))
    with pytest.raises(MissingPrerequisiteError, match="cannot be loaded"):
        load_causal_model(tmp_path, dtype=torch.float32, device="cpu")
    assert not canary.exists()


def test_a_new_score_head_comes_from_the_seed_alone(tmp_path: Path) -> None:
    save_causal_model(tmp_path)
    heads = []
    for seed in (1, 1, 2):
        torch.rand(5)
        model = load_new_reward_model(tmp_path, pad_token_id=5, seed=seed, dtype=torch.float32, device="cpu")
        heads.append(model.score.weight)
        assert model.config.pad_token_id == 5
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_lora_trains_every_linear_layer_and_the_whole_score_head_in_float32(tmp_path: Path) -> None:
    save_causal_model(tmp_path)
    model = load_new_reward_model(tmp_path, pad_token_id=0, seed=1, dtype=torch.bfloat16, device="cpu")
    linear = [name for name, module in model.model.named_modules() if isinstance(module, torch.nn.Linear)]
    adapted = apply_lora(model, LORA, task_type="SEQ_CLS")
    training = {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert {parameter.dtype for parameter in training.values()} == {torch.float32}
    assert sum("lora_A" in name for name in training) == len(linear) == 14
    assert sum("score" in name for name in training) == 1


def test_without_lora_the_whole_model_trains() -> None:
    model = tiny_causal_model(tiny_tokenizer())
    assert apply_lora(model, None, task_type="CAUSAL_LM") is model
    trainable, total = parameter_counts(model)
    assert trainable == total > 10_000


def test_a_merged_model_answers_as_the_adapted_one_and_names_no_path_of_this_machine(tmp_path: Path) -> None:
    folder, tokenizer = save_causal_model(tmp_path / "start"), tiny_tokenizer()
    model = load_causal_model(folder, dtype=torch.float32, device="cpu")
    adapted = apply_lora(model, LORA, task_type="CAUSAL_LM")
    torch.manual_seed(0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    tokens = torch.tensor([[10, 20, 30, 40]])
    with torch.no_grad():
        wanted, base = adapted(tokens).logits, AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
    save_adapter(adapted, tokenizer, tmp_path / "adapter", base_model="org/name@abc")
    save_merged(adapted, tokenizer, tmp_path / "merged")
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(tokens).logits
    assert torch.allclose(found, wanted, atol=1e-5)
    assert not torch.allclose(base, wanted, atol=1e-2)
    written = [*(tmp_path / "merged").iterdir(), *(tmp_path / "adapter").iterdir()]
    assert not [path for path in written if str(tmp_path).encode() in path.read_bytes()]
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (settings["base_model_name_or_path"], settings["revision"]) == ("org/name", "abc")
    assert settings["target_modules"] == sorted(settings["target_modules"])
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template == tokenizer.chat_template


def test_a_profile_without_gpus_computes_in_float32_on_the_cpu() -> None:
    profile = GpuProfile(name="cpu", num_gpus=0, precision="float32")
    assert (compute_device(profile).type, compute_dtype(profile)) == ("cpu", torch.float32)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_profile_on_a_machine_without_gpu_is_refused_and_not_run_on_the_cpu() -> None:
    with pytest.raises(MissingPrerequisiteError, match=r"torch .* sees none"):
        compute_device(GpuProfile(name="1x48gb", num_gpus=1))


class _ChecksOnDevices(TorchFunctionMode):
    """The devices on which numbers are asked whether they are finite."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.isfinite:
            self.seen.add(args[0].device.type)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("load", ["policy", "reward model"])
def test_weights_are_checked_on_the_device_where_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: str
) -> None:
    """All of an 8B model's took most of a minute on a CPU."""
    (save_causal_model if load == "policy" else save_reward_model)(tmp_path)
    loader = load_causal_model if load == "policy" else load_reward_model
    monkeypatch.setattr(torch.nn.Module, "to", lambda model, device: move_to_gpu(model))
    with pretended_gpu(monkeypatch), _ChecksOnDevices() as checks:
        loader(tmp_path, dtype=torch.float32, device="cuda:0")
    assert checks.seen == {"cuda"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    model = tiny_causal_model(tiny_tokenizer())
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] = value
    model.save_pretrained(tmp_path)
    with pytest.raises(DivergedError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is not finite"):
        load_causal_model(tmp_path, dtype=torch.float32, device="cpu")
