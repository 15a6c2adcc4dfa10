"""What wrote a rollout is known by its trained weights: frozen ones do not count, and a small step already does."""

from pathlib import Path

import pytest
import torch

from containers.contracts.configs.parts.training import LoraSettings
from containers.models.loading import apply_lora, load_causal_model
from containers.models.weights import weights_digest
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages


def test_a_step_changes_it_and_frozen_weights_do_not(tmp_path: Path) -> None:
    base = load_causal_model(save_causal_model(tmp_path / "start"), dtype=torch.float32, device="cpu")
    policy = apply_lora(base, LoraSettings(r=4, alpha=8), task_type="CAUSAL_LM")
    found = [weights_digest(policy)]
    for trained in (False, True):
        weight = next(weight for weight in policy.parameters() if weight.requires_grad is trained)
        with torch.no_grad():
            weight += 1e-5
        found.append(weights_digest(policy))
    assert found[0] == found[1] != found[2]
    assert len(found[0]) == 16
