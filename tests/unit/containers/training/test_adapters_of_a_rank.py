"""A rank reads its adapters onto its own GPU: `cuda` alone is the first one to safetensors, in every rank."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft.peft_model
import pytest
import torch
from peft import LoraConfig, get_peft_model

from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.training.loop import train
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import tiny_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages


@pytest.mark.parametrize(
    ("device", "wanted"), [(torch.device("cuda", 3), "cuda:3"), (torch.device("cpu", 1), "cpu")], ids=["GPU", "CPU"]
)
def test_an_adapter_is_read_onto_the_gpu_of_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: torch.device, wanted: str
) -> None:
    adapters = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(tiny_causal_model(tiny_tokenizer()), adapters)
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    read, asked = peft.peft_model.load_peft_weights, []

    def reading(folder: str, device: str, **named: Any) -> Any:
        asked.append(device)
        return read(folder, device="cpu", **named)

    monkeypatch.setattr(peft.peft_model, "load_peft_weights", reading)
    trainer = SimpleNamespace(
        model=model,
        args=SimpleNamespace(device=device, load_best_model_at_end=False),
        train=lambda **_: model.load_adapter(str(tmp_path / "adapter"), "default"),
    )
    context = make_context(tmp_path, StageName.TRAIN_SFT, TrainSftConfig(), {})
    train(context, trainer, None, planned_steps=1, last_step=1)
    assert asked == [wanted]
