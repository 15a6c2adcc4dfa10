"""A policy whose frozen weights have few bits learns, resumes to the same, and needs a reward model that holds."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from containers.harness.errors import StageError
from containers.models.quantized import is_quantized
from containers.stages import train_policy
from tests.unit.containers.rewards.test_several_models import context_of as with_reward_models
from tests.unit.containers.rewards.test_several_models import term_of, trained
from tests.unit.containers.stages.test_rewards_in_training import OUTCOME, context_of

pytestmark = pytest.mark.stages

pytest.importorskip("bitsandbytes")


def test_a_policy_on_four_bits_trains_resumes_bit_for_bit_and_publishes_plain_weights(tmp_path: Path) -> None:
    whole, broken = (
        context_of(tmp_path / name, rewards=(OUTCOME,), quantization="nf4", beta=0.1) for name in ("whole", "broken")
    )
    for context in (whole, broken):
        train_policy.run(context)
    shutil.rmtree(broken.checkpoints / "checkpoint-4")
    shutil.rmtree(broken.output)
    broken.output.mkdir()
    train_policy.run(broken)
    one, other = (load_file(context.output / "model" / "model.safetensors") for context in (whole, broken))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not is_quantized(AutoModelForCausalLM.from_pretrained(whole.output / "model"))


def test_a_reward_model_of_whole_numbers_is_refused_on_weights_where_it_scores_otherwise(tmp_path: Path) -> None:
    context = with_reward_models(tmp_path / "run", trained(tmp_path), term_of(1), quantization="nf4")
    with pytest.raises(StageError, match=r"start model's nf4 weights, margins .* same quantization as the policy"):
        train_policy.run(context)
