"""Given completions are packed for models that packs compute rightly; else in padded rows, and the log says why."""

from pathlib import Path
from typing import Any

import pytest

from containers.algorithms.offline_packing import expert_weight, in_one, plan_offline_packing
from containers.algorithms.offline_step import Example
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.packing.logps import CompletionPack
from containers.packing.padded import PaddedRows
from tests.unit.containers.algorithms.test_policy_packing import DIFFERENT, EXPERTS, model
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages

BATCH = BatchPlan(global_batch_size=8, per_device_batch_size=2, num_processes=1, gradient_accumulation_steps=4)
GPTJ: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "n_ctx": 256, "rotary_dim": 4}


def examples(width: int) -> list[Example]:
    return [Example([5 + place] * (10 + place), tuple([[7] * 4] * width)) for place in range(5)]


@pytest.mark.parametrize(
    ("config", "family", "sizes", "kind", "note"),
    [
        (TrainSftConfig(max_length=100), "qwen3", {}, CompletionPack, "Completions are packed, 200 tokens at a time"),
        (TrainDpoConfig(max_length=100), "qwen3", {}, CompletionPack, "Completions are packed, 400 tokens at a time"),
        (TrainSftConfig(max_length=100, pack_tokens=33), "qwen3", {}, CompletionPack, "packed, 33 tokens at a time"),
        (TrainSftConfig(max_length=100, pack=False), "qwen3", {}, PaddedRows, ""),
        (TrainDpoConfig(max_length=100), "gptj", GPTJ, PaddedRows, "as padded rows: the attention of GPTJForCausalLM"),
        (TrainSftConfig(max_length=100), "mistral", DIFFERENT["mistral"][0], PaddedRows, "window of 16 tokens"),
        (TrainSftConfig(max_length=16), "mistral", DIFFERENT["mistral"][0], CompletionPack, "Completions are packed"),
        (TrainSftConfig(max_length=100), EXPERTS, DIFFERENT[EXPERTS][0], PaddedRows, "the load of its experts"),
    ],
)
def test_the_plan_follows_configuration_and_model_and_says_so(
    tmp_path: Path, config: Any, family: str, sizes: dict[str, Any], kind: type, note: str
) -> None:
    context = make_context(tmp_path, StageName.TRAIN_SFT, TrainSftConfig(), {}, batch=BATCH)
    width = 2 if isinstance(config, TrainDpoConfig) else 1
    rows = examples(width) if config.max_length > 16 else [Example([5, 6, 7], ([8],))] * 3
    cut = plan_offline_packing(context, config, model(family, sizes), rows, what="Completions")
    made = cut([[1, 2]] * 6, [[3]] * 6)
    assert {type(part) for part in made} == {kind}
    # Padded rows: as many at a time as two examples have.
    assert len(made) == (1 if kind is CompletionPack else 6 // (2 * width) + (6 % (2 * width) > 0))
    events = context.work / "events.jsonl"
    assert note in (events.read_text() if events.exists() else "")


def test_a_step_is_one_batch_of_the_trainer() -> None:
    one = in_one(BATCH)
    assert (one.per_device_batch_size, one.gradient_accumulation_steps, one.global_batch_size) == (8, 1, 8)


def test_only_a_model_of_experts_has_a_weight_for_their_balance() -> None:
    assert expert_weight(model(EXPERTS, DIFFERENT[EXPERTS][0])) == 0.001
    assert expert_weight(model("qwen3", {})) == 0.0
