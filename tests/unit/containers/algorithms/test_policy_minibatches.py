"""A rollout that is used for several updates has TRL's gradient in each of them, while the policy moves away."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from containers.contracts.configs.parts.policy_algorithms import POLICY_ALGORITHMS
from containers.contracts.schedule import plan_minibatches
from containers.rollouts.rollout import Rollout, minibatch_rows
from tests.unit.containers.algorithms.policy_cases import (
    CUTS,
    PROMPTS,
    TOLERANCE,
    K,
    Peer,
    apart,
    gradient_of,
    step_batch,
)
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

# Length of a step that takes some ratios beyond their limits.
FAR = 0.3


@pytest.mark.parametrize("algorithm", ["rloo", "grpo", "dr_grpo", "gspo", "sapo"])
def test_every_gradient_of_a_rollout_in_minibatches_and_epochs_is_trls(tmp_path: Path, algorithm: str) -> None:
    """DAPO and CISPO are left out: TRL divides by the rollout's tokens, ours by those of the minibatch."""
    minibatches = plan_minibatches(len(PROMPTS) * K, global_batch_size=len(PROMPTS) * K // 2, epochs=2)
    peer = Peer(
        save_causal_model(tmp_path / "start", scale=0.1, seed=3),
        tmp_path,
        algorithm,
        beta=0.05,
        num_iterations=2,
        steps_per_generation=2,
    )
    method = POLICY_ALGORITHMS[algorithm].model_copy(update={"beta": 0.05})
    step = peer.step(method, cut=CUTS["2 packs"], updates_per_rollout=minibatches.updates)
    batch = step_batch(*peer.tokens(), peer.trainer.processing_class)
    step.prepare(peer.model, batch)
    whole, rollout, limited = dict(peer.batch), Rollout(batch, minibatches, seed="0"), 0.0
    assert len(whole["completion_ids"]) == len(batch.completions)
    for number in range(minibatches.updates):
        groups = minibatch_rows(minibatches, number, num_groups=len(PROMPTS), seed="0")
        rows = torch.tensor([group * K + place for group in groups for place in range(K)])
        peer.batch = {
            name: value[rows] if isinstance(value, Tensor) and value.dim() else value for name, value in whole.items()
        }
        theirs = peer.gradient()
        peer.model.zero_grad()
        _loss, sums = step.update(peer.model, rollout.next_batch())
        assert apart(gradient_of(peer.model), theirs) < TOLERANCE, number
        limited += sums["limited"]
        with torch.no_grad():
            for weight in peer.model.parameters():
                if weight.grad is not None:
                    weight -= FAR * weight.grad / theirs.norm()
    assert rollout.is_used_up
    assert (limited > 0) is (method.objective != "soft"), "the policy moved too little"
