"""Layers that keep their activations change time and memory, and no weight of the model that is trained."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

from containers.contracts.configs.parts.training import (
    Checkpointing,
    LoraSettings,
    TrainingSchedule,
    keeps_activations,
)
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.stages import train_reward_model, train_sft
from containers.training.kept_layers import keep_some
from tests.unit.factories.reward_model_factory import reward_model_config
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import tiny_config, tiny_tokenizer

pytestmark = pytest.mark.stages

LORA = LoraSettings(r=4, alpha=8, dropout=0.2)
SCHEDULE = TrainingSchedule(max_steps=2, eval_steps=2)
CONFIGS: dict[str, Callable[..., Any]] = {
    "reward model, packed": lambda **changes: reward_model_config(lora=LORA, schedule=SCHEDULE, **changes),
    "reward model, padded": lambda **changes: reward_model_config(lora=LORA, schedule=SCHEDULE, pack=False, **changes),
    "reward model, all weights": lambda **changes: reward_model_config(
        trainable="full", lora=None, schedule=SCHEDULE, **changes
    ),
    "sft": lambda **changes: TrainSftConfig(max_length=256, lora=LORA, schedule=SCHEDULE, **changes),
    "sft, all weights": lambda **changes: TrainSftConfig(max_length=256, schedule=SCHEDULE, **changes),
}


def _start(folder: Path) -> Path:
    from transformers import Qwen3ForCausalLM

    if not folder.exists():
        tokenizer = tiny_tokenizer()
        torch.manual_seed(0)
        Qwen3ForCausalLM(tiny_config(tokenizer, num_hidden_layers=5, initializer_range=0.02)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def _trained(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, checkpointing: object) -> Any:
    """Train; the context, and how often each layer was computed with gradients or to be computed again."""
    stage, run = (
        (StageName.TRAIN_SFT, train_sft.run)
        if kind.startswith("sft")
        else (StageName.TRAIN_REWARD_MODEL, train_reward_model.run)
    )
    inputs = {"pairs": write_pairs(folder / "pairs", colour_rows(16)), "start_model": _start(folder.parent / "start")}
    context = make_context(folder, stage, CONFIGS[kind](gradient_checkpointing=checkpointing), inputs)
    computed: Counter[int] = Counter()
    forward = Qwen3MLP.forward

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.training:
            computed[self.number] += 1
        return forward(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Qwen3MLP, "forward", counted)
        patch.setattr(Qwen3MLP, "__init__", _numbered(Qwen3MLP.__init__))
        run(context)
    return context, [computed[number] for number in range(5)]


def _numbered(make: Callable[..., None]) -> Callable[..., None]:
    made = Counter[str]()

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        self.number = made["layers"] % 5
        made["layers"] += 1

    return init


def _weights(context: StageContext) -> list[bytes]:
    return [path.read_bytes() for path in sorted(context.output.rglob("*.safetensors"))]


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_weights_are_the_same_and_the_other_layers_are_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    plain, once = _trained(tmp_path / "plain", kind, monkeypatch, checkpointing=False)
    whole, twice = _trained(tmp_path / "whole", kind, monkeypatch, checkpointing=True)
    some, mixed = _trained(tmp_path / "some", kind, monkeypatch, checkpointing=2)
    assert _weights(plain) == _weights(whole) == _weights(some) != []
    assert once[0] > 0 and once == [once[0]] * 5
    assert twice == [2 * once[0]] * 5
    assert mixed == [2 * once[0], once[0], 2 * once[0], once[0], 2 * once[0]]
    note = "2 of 5 layers keep their activations"
    assert note in (some.work / "events.jsonl").read_text()
    assert note not in (whole.work / "events.jsonl").read_text()


def _kept_bytes(model: Any, checkpointing: Checkpointing) -> int:
    """Bytes that the forward of one row keeps for its backward, layers that compute again aside."""
    model.train()
    if checkpointing:
        model.activation_checkpointing_enable()
        keep_some(model, checkpointing)
    else:
        model.activation_checkpointing_disable()
    storages: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    held = [weight.untyped_storage().data_ptr() for weight in model.parameters()]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logits = model(input_ids=torch.arange(64)[None] % 200, use_cache=False).logits
    del logits
    return sum(count for place, count in storages.items() if place not in held)


def test_each_layer_that_keeps_its_activations_takes_the_memory_of_one(tmp_path: Path) -> None:
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM(tiny_config(tiny_tokenizer(), num_hidden_layers=12))
    none, fourth, third, half, every = (_kept_bytes(model, n) for n in (True, 4, 3, 2, False))
    assert none < fourth < third < half < every
    of_a_layer = (every - none) / 12
    for found, kept in ((fourth, 3), (third, 4), (half, 6)):
        assert found - none == pytest.approx(kept * of_a_layer, rel=0.02)


def test_every_nth_layer_keeps_its_activations() -> None:
    assert [keeps_activations(layer, 3) for layer in range(6)] == [False, False, True, False, False, True]
    assert not any(keeps_activations(layer, True) for layer in range(6))
    assert all(keeps_activations(layer, False) for layer in range(6))
    assert not any(keeps_activations(layer, 7) for layer in range(6))


@pytest.mark.parametrize("config", [TrainRewardModelConfig, TrainSftConfig, TrainDpoConfig, TrainPolicyConfig])
def test_the_key_takes_true_false_and_a_number_of_two_or_more(config: Any) -> None:
    for value in (True, False, 2, 12):
        found = config(gradient_checkpointing=value).gradient_checkpointing
        assert found == value and type(found) is type(value)
    for value in (0, 1, -3, 1001, "some"):
        with pytest.raises(ValidationError):
            config(gradient_checkpointing=value)
