"""A model for which its device has no room is computed layer by layer, by accelerate, and gives what a whole one does.

Here layers lie on the disk and come to memory in their turn, as they would come from host memory to a GPU.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from transformers import AutoModelForCausalLM

from containers.models import loading
from containers.models.loading import load_causal_model
from containers.models.offloading import is_spilled, places, spilling_arguments
from containers.packing.logps import row_logps
from containers.scoring.rounding import allowed_by_trial, turn_last_bits
from containers.scoring.scorer import RewardScorer
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

TALKS = [[{"role": "user", "content": "q" * n}, {"role": "assistant", "content": "a" * (40 - n)}] for n in range(8)]


@pytest.fixture
def little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def arguments(auto_class: Any, folder: Path, device: torch.device | str) -> dict[str, Any]:
        where = places(auto_class, folder, here="cpu", elsewhere="disk", share=0.5)
        return {"device_map": where, "offload_folder": tmp_path / "layers"}

    monkeypatch.setattr(loading, "spilling_arguments", arguments)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("packs", [True, False])
def test_scores_are_those_of_a_whole_model(tmp_path: Path, packs: bool) -> None:
    folder = save_reward_model(tmp_path / "model")
    found = []
    for spills in (False, True):
        scorer = RewardScorer.load(
            folder, device="cpu", dtype=torch.float32, max_length=200, batch_size=4, spills=spills
        )
        assert is_spilled(scorer.model) == spills
        assert scorer.model.device.type == "cpu", "what comes first stays"
        scorer.padded_since = "" if packs else "a test"
        found.append(scorer.score(TALKS))
        assert not scorer.padded_since or not packs
    assert found[1] == pytest.approx(found[0], abs=1e-6)


@pytest.mark.usefixtures("little_memory")
def test_log_probabilities_are_those_of_a_whole_model(tmp_path: Path) -> None:
    folder = save_causal_model(tmp_path / "model")
    whole, spilled = (
        load_causal_model(folder, dtype=torch.float32, device="cpu", spills=spills) for spills in (False, True)
    )
    assert is_spilled(spilled)
    with torch.no_grad():
        wanted, found = (row_logps(model, [5], [6, 7, 8]) for model in (whole, spilled))
    assert found.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


def test_without_a_gpu_nothing_spills(tmp_path: Path) -> None:
    assert spilling_arguments(AutoModelForCausalLM, tmp_path, "cpu") == {}


def test_what_a_gpu_has_no_room_for_spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_causal_model(tmp_path / "model")
    size = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1.3 * size, 9 * size))
    assert spilling_arguments(AutoModelForCausalLM, folder, "cuda") == {}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1.2 * size, 9 * size))
    found = spilling_arguments(AutoModelForCausalLM, folder, "cuda")["device_map"]
    assert found == {
        "lm_head": 0, "model.embed_tokens": 0, "model.norm": 0, "model.rotary_emb": 0,
        "model.layers.0": 0, "model.layers.1": "cpu",
    }  # fmt: skip


def test_bits_are_turned_in_layers_that_lie_elsewhere_too_and_turned_back(tmp_path: Path) -> None:
    folder = save_reward_model(tmp_path / "model")
    found = []
    for spills in (False, True):
        scorer = RewardScorer.load(folder, device="cpu", dtype=torch.bfloat16, max_length=200, batch_size=4)
        if spills:  # as accelerate holds a layer in host memory beside a GPU
            cpu_offload(scorer.model.get_submodule("model.layers.1"), execution_device=torch.device("cpu"))
        before = scorer.score(TALKS)
        allowed = allowed_by_trial(partial(scorer.everywhere, turn_last_bits), partial(scorer.score, TALKS))
        assert scorer.score(TALKS) == before
        found.append(allowed)
    assert found[0] == found[1] > 0
