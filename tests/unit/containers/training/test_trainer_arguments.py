"""What the run planned must reach the Trainer, whose own defaults would train something else."""

from pathlib import Path

import pytest
from transformers import OpenAIGPTConfig, Qwen3Config

from containers.contracts.configs.parts.training import OptimizerSettings
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.contracts.schedule import ResolvedSchedule
from containers.harness.errors import BadConfigError
from containers.training.arguments import common_arguments
from containers.training.sharding import require_layers
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages

TWO_RANKS = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=2, gradient_accumulation_steps=1)
SCHEDULE = ResolvedSchedule(num_steps=42, steps_per_epoch=20, eval_steps=4, save_steps=7, logging_steps=1)


def test_arguments_follow_batch_plan_schedule_and_profile(tmp_path: Path) -> None:
    context = make_context(tmp_path, StageName.TRAIN_REWARD_MODEL, TrainRewardModelConfig(), {}, batch=TWO_RANKS)
    arguments = common_arguments(
        context, optimizer=OptimizerSettings(warmup_fraction=0.03), schedule=SCHEDULE, batch=TWO_RANKS
    )
    assert arguments["max_steps"] == 42
    assert arguments["per_device_train_batch_size"] == 4
    # SaveCallback knows when to save. The Trainer wants a multiple of its own, which must not come before the end.
    assert (arguments["eval_steps"], arguments["save_steps"]) == (4, 44)
    # Pruned by us, after the new checkpoint was verified.
    assert arguments["save_total_limit"] is None
    # A share below one step would be read as "no warm-up" or as a ratio; 3 % of 42 steps are 2 steps.
    assert arguments["warmup_steps"] == 2
    assert (arguments["seed"], arguments["data_seed"]) == (7, 7)
    assert (arguments["use_cpu"], arguments["bf16"], arguments["tf32"]) == (True, False, None)
    assert (arguments["ddp_backend"], arguments["ddp_timeout"]) == ("gloo", 1800)
    assert not arguments["logging_nan_inf_filter"]


def test_a_trainer_without_evaluation_keeps_no_best_checkpoint(tmp_path: Path) -> None:
    context = make_context(tmp_path, StageName.TRAIN_POLICY, TrainPolicyConfig(), {})
    arguments = common_arguments(
        context, optimizer=OptimizerSettings(), schedule=SCHEDULE, batch=context.spec.batch, evaluates=False
    )
    assert arguments["eval_strategy"] == "no"
    assert "load_best_model_at_end" not in arguments


def test_a_class_without_named_layers_is_refused_with_what_to_set(tmp_path: Path) -> None:
    OpenAIGPTConfig(n_layer=2).save_pretrained(tmp_path)
    with pytest.raises(BadConfigError, match=r"openai-gpt names no layers .* Set distribution: ddp"):
        require_layers(tmp_path)


def test_a_usual_model_is_divided(tmp_path: Path) -> None:
    Qwen3Config(num_hidden_layers=2).save_pretrained(tmp_path)
    require_layers(tmp_path)
