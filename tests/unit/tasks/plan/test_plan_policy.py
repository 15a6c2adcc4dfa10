"""A policy's plan counts what its training computes: packs with each prompt once, or rows where it cannot be packed."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.hardware import GpuProfile
from containers.contracts.names import StageName
from containers.contracts.schedule import plan_batch
from tasks.config.loading import LoadedConfig
from tasks.plan.head import Head
from tasks.plan.inputs.model_shape import ModelShape
from tasks.plan.run_plan import plan_run
from tasks.plan.text import figure_text
from tests.unit.factories.plan_runs import SHAPE, figure_of, pair, run_by_ranks, run_on, stage_of

PRODUCTION = Path("configs/runs/helpsteer3-qwen3-8b.yaml")
POLICY = StageName.TRAIN_POLICY
SETTINGS = {"max_prompt_length": 200, "max_completion_length": 50, "num_generations": 4, "lora": {"r": 8}}


def policy_run(folder: Path, *, config: dict[str, Any] | None = None, **settings: Any) -> LoadedConfig:
    """Prompts of 108 tokens, 119 with a tenth; 8 completions a step, 4 per device, on a CPU."""
    loaded = run_on(folder, [pair(100, 20, 30)] * 150, train_policy={**SETTINGS, **settings})
    (folder / "model" / "config.json").write_text(json.dumps({**SHAPE, **(config or {})}))
    return loaded


def value(loaded: LoadedConfig, name: str) -> float:
    return figure_of(plan_run(loaded), POLICY, name).value or 0


def test_a_pack_holds_each_prompt_once_and_no_more_than_a_step_has(tmp_path: Path) -> None:
    loaded = policy_run(tmp_path)
    at_a_time = figure_text(figure_of(plan_run(loaded), POLICY, "computed at a time"))
    # 2 prompts of 119 tokens and 8 completions of 50; the budget is 4 rows of 250.
    assert at_a_time == "at most 638 tokens (packed completions, each prompt once)"
    assert value(loaded, "tokens a step") == 8 * (108 / 4 + 50)


def test_activations_are_those_of_one_pack(tmp_path: Path) -> None:
    # With checkpointing: the input of each of 2 blocks, and all that one makes with its gradients, in float32.
    block = 8 * 64 + 2 * 64 + 4 * 64 + 4 * 128
    assert value(policy_run(tmp_path), "activations") == math.ceil(638 * 4 * (2 * 64 + 1.7 * block))


def test_a_frozen_head_on_a_cpu_makes_a_tile_of_the_whole_vocabulary(tmp_path: Path) -> None:
    loaded = policy_run(tmp_path)
    figure = figure_of(plan_run(loaded), POLICY, "logits")
    # 400 tokens by 50,000 words are fewer than 2 ** 25: three copies, and the gradient to the hidden states.
    assert figure.value == 3 * 4 * 400 * 50_000 + 400 * 64 * 4
    assert figure.note == "400 tokens by 50,000 words at a time"


def test_a_small_budget_parts_siblings_and_they_are_computed_with_fewer_on_a_prompt(tmp_path: Path) -> None:
    loaded = policy_run(tmp_path, pack_tokens=300)
    assert value(loaded, "computed at a time") == 300
    # Beside a prompt of 108 tokens there is room for 3 completions: the fourth has its own.
    assert value(loaded, "tokens a step") == 8 * (108 / 2 + 50)
    assert value(policy_run(tmp_path, pack_tokens=10), "computed at a time") == 119 + 50


def test_padded_rows_hold_the_longest_prompt_with_each_completion(tmp_path: Path) -> None:
    loaded = policy_run(tmp_path, pack=False)
    text = figure_text(figure_of(plan_run(loaded), POLICY, "computed at a time"))
    assert text == "at most 676 tokens (padded rows: pack is false)"
    assert value(loaded, "tokens a step") == 8 * (108 + 50)
    # TRL's head on a CPU makes nine copies of a tile, of prompts too.
    assert value(loaded, "logits") == 9 * 4 * 676 * 32_768 + 676 * 64 * 4


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"sliding_window": 100}, "it attends over a window of 100 tokens, fewer than a conversation may have"),
        (
            {"layer_types": ["full_attention", "linear_attention"]},
            "it has layers that are no plain attention: linear_attention",
        ),
        ({"attn_logit_softcapping": 50.0}, "its attention caps its logits"),
        ({"final_logit_softcapping": 30.0}, "its logits are scaled or capped"),
        (
            {"router_aux_loss_coef": 0.001},
            "the load of its experts is balanced over whole batches, which packs are not",
        ),
    ],
)
def test_a_model_that_cannot_be_packed_is_planned_as_padded_rows_and_the_plan_says_why(
    tmp_path: Path, config: dict[str, Any], why: str
) -> None:
    loaded = policy_run(tmp_path, config=config)
    text = figure_text(figure_of(plan_run(loaded), POLICY, "computed at a time"))
    assert text == f"at most 676 tokens (padded rows: {why})"
    assert value(loaded, "tokens a step") == 8 * (108 + 50)


@pytest.mark.parametrize(
    "config",
    [
        {"sliding_window": 100, "use_sliding_window": False},
        {"sliding_window": 250},
        {"sliding_window": 100, "layer_types": ["full_attention", "full_attention"]},
        {"sliding_window": None, "layer_types": None, "logit_scale": 1.0},
        {"sliding_window": "wide"},
    ],
    ids=["not used", "wide enough", "in no layer", "none", "cannot be read"],
)
def test_what_does_not_hinder_packs_is_planned_as_packs(tmp_path: Path, config: dict[str, Any]) -> None:
    assert value(policy_run(tmp_path, config=config), "computed at a time") == 638


def test_a_reward_model_with_a_window_is_planned_as_padded_rows_too(tmp_path: Path) -> None:
    loaded = policy_run(tmp_path, config={"sliding_window": 100})
    figure = figure_of(plan_run(loaded), StageName.TRAIN_REWARD_MODEL, "computed at a time")
    assert figure.note.startswith("padded rows: it attends over a window of 100 tokens")


@pytest.fixture
def production(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    return PRODUCTION


def on_one_gpu(production: Path, *overrides: str) -> LoadedConfig:
    """16 completions a step of 4 prompts, 4 per device; prompts up to 1,024 tokens, completions of 512."""
    return run_by_ranks(production, profile="1x80gb", overrides=overrides)


def test_memory_of_an_8b_policy_on_one_gpu_is_that_of_a_pack(production: Path) -> None:
    plan = plan_run(on_one_gpu(production))
    parts = {figure.name: figure.value for figure in stage_of(plan, POLICY).memory}
    block = 8 * 4096 + 2 * 4096 + 4 * 1024 + 4 * 12_288
    assert parts == {
        "frozen weights": 2 * 8_190_735_360,
        "trained weights, gradients, AdamW": 16 * 174_587_904,
        # 4 rows of 1,536 tokens, in bfloat16.
        "activations": math.ceil(6144 * 2 * (36 * 4096 + 1.7 * block)),
        "logits": 2 * 4096 * 32_768 + 6144 * 4096 * 4,
        # An adapter on the policy's own weights, and its head, in float32.
        "reward model": 4 * (174_587_904 + 4096),
        # 4 prompts, and 16 completions.
        "generation cache": (4 * 1024 + 16 * 512) * 36 * 2 * 1024 * 2,
        "CUDA context": 1.5 * 1024**3,
    }


# Weights of the linear layers of Qwen3-8B, and of its head.
WEIGHTS, HEAD = 36 * 192_937_984, 4096 * 151_936
# Prompts are reckoned at half of 1,024 tokens; 4 completions share one.
PACKED, WRITTEN, PROMPTS = 16 * (512 // 4 + 512), 16 * 512, 16 * 512


def operations(loaded: LoadedConfig) -> float:
    work = stage_of(plan_run(loaded), POLICY).work
    assert work is not None and work.value is not None
    return work.value


def test_work_is_generation_reference_reward_and_update_and_no_forward_of_the_policys_own(production: Path) -> None:
    generation = 2 * WEIGHTS * (PROMPTS // 4 + WRITTEN) + 2 * HEAD * WRITTEN
    reference = 2 * WEIGHTS * PACKED + 2 * HEAD * WRITTEN
    # Of two completions the meters compute the state, the score, and the score of three times the text.
    reward = 2 * WEIGHTS * (PACKED + 2 * (3 * 512 + 5 * 512))
    # Adapters and checkpointing: forward twice, and the gradient of the inputs.
    update = 6 * WEIGHTS * PACKED + 6 * HEAD * WRITTEN
    assert operations(on_one_gpu(production)) == pytest.approx(100 * (generation + reference + reward + update))
    without_kl = operations(on_one_gpu(production, "train_policy.beta=0"))
    assert without_kl == pytest.approx(100 * (generation + reward + update))
    each = operations(on_one_gpu(production, "train_policy.rollout_engine=transformers"))
    assert each == pytest.approx(100 * (generation + 2 * WEIGHTS * (PROMPTS * 3 // 4) + reference + reward + update))


def test_a_step_that_is_refilled_may_take_several_draws_and_the_plan_says_so(production: Path) -> None:
    beta = "train_policy.beta=0"
    times = [
        stage_of(plan_run(on_one_gpu(production, f"train_policy.algorithm={name}", beta)), POLICY).time
        for name in ("dapo", "grpo")
    ]
    notes = [time.note for time in times if time is not None]
    assert [("with one draw a step; refill takes up to 10" in note) for note in notes] == [True, False]


def test_each_of_several_reward_models_takes_memory_and_work(production: Path) -> None:
    one = on_one_gpu(production)
    other = "{path: elsewhere, certificate: elsewhere}"
    rewards = f"[{{type: reward_model, normalise: validation, others: [{other}, {other}]}}]"
    three = on_one_gpu(production, f"train_policy.rewards={rewards}")
    memory = {figure.name: figure.value for figure in stage_of(plan_run(three), POLICY).memory}
    assert memory["3 reward models"] == 2 * 2 * 7_568_409_600 + 4 * (174_587_904 + 4096)
    assert operations(three) - operations(one) == pytest.approx(100 * 2 * 2 * WEIGHTS * PACKED)


def test_generation_keeps_prompts_once_unless_transformers_own_way_is_asked_for(production: Path) -> None:
    def cache(*overrides: str) -> float | None:
        memory = stage_of(plan_run(on_one_gpu(production, *overrides)), POLICY).memory
        return next(figure.value for figure in memory if figure.name == "generation cache")

    a_token = 36 * 2 * 1024 * 2
    assert cache("train_policy.rollout_engine=transformers") == 16 * 1536 * a_token
    # Room doubles from 64 on.
    assert cache("train_policy.max_completion_length=300") == (4 * 1024 + 16 * 512) * a_token
    assert cache("train_policy.max_completion_length=10") == (4 * 1024 + 16 * 64) * a_token
    batched = cache("train_policy.rollout_engine=continuous_batching", "train_policy.max_completion_length=300")
    assert batched == (4 * 1024 + 16 * (300 + 2 * 256)) * a_token


def test_siblings_in_several_packs_and_batches_used_twice_cost_a_forward_of_the_policy(production: Path) -> None:
    once = 100 * (2 * WEIGHTS * PACKED + 2 * HEAD * WRITTEN)
    whole = operations(on_one_gpu(production))
    # One completion fits beside a prompt of 512 tokens: nothing is shared by policy and reference.
    apart = 16 * (512 + 512)
    parted = operations(on_one_gpu(production, "train_policy.pack_tokens=1200"))
    more_tokens = 100 * WEIGHTS * (apart - PACKED) * (2 + 6)
    assert parted == pytest.approx(whole + more_tokens + 100 * (2 * WEIGHTS * apart + 2 * HEAD * WRITTEN))
    twice = operations(on_one_gpu(production, "train_policy.num_iterations=2"))
    update = 100 * (6 * WEIGHTS * PACKED + 6 * HEAD * WRITTEN)
    assert twice == pytest.approx((whole - update + once) / 2 + update)


def head(tokens: int, *, is_trained: bool, in_packs: bool, num_gpus: int = 0) -> Head:
    shape = ModelShape.model_validate({**SHAPE, "vocab_size": 151_646})
    precision = "bf16" if num_gpus else "float32"
    profile = GpuProfile(name="one", num_gpus=num_gpus, num_processes=1, precision=precision)
    return Head(shape, profile, tokens=tokens, is_trained=is_trained, in_packs=in_packs)


def test_a_trained_head_has_narrow_tiles_in_packs_and_a_gradient_of_its_own() -> None:
    trained = head(1000, is_trained=True, in_packs=True)
    assert trained.tile == (1000, 2**20 // 1000)
    assert trained.memory_bytes == 9 * 4 * 1000 * 1048 + 1000 * 64 * 4 + 151_646 * 64 * 4


@pytest.mark.parametrize("tokens", [100, 10_000])
def test_tiles_on_a_gpu_do_not_grow_with_the_vocabulary(tokens: int) -> None:
    packed, padded = (head(tokens, is_trained=False, in_packs=packs, num_gpus=1) for packs in (True, False))
    assert packed.memory_bytes == padded.memory_bytes == 2 * min(tokens, 4096) * 32_768 + tokens * 64 * 4


@pytest.mark.stages
@pytest.mark.parametrize("pack_tokens", [None, 300, 10])
def test_packs_that_the_stage_cuts_are_as_planned(tmp_path: Path, pack_tokens: int | None) -> None:
    from containers.packing.logps import completion_packs

    loaded = policy_run(tmp_path, pack_tokens=pack_tokens)
    batch = plan_batch(8, loaded.config.gpu_profile, multiple_of=4)
    rows = batch.per_device_batch_size * batch.gradient_accumulation_steps
    prompts = [[1000 + row // 4, *range(107)] for row in range(rows)]
    completions = [[2000 + row, *range(49)] for row in range(rows)]
    packs = completion_packs(prompts, completions, max_tokens=pack_tokens or 4 * 250)
    assert sum(pack.input_ids.numel() for pack in packs) == value(loaded, "tokens a step")
    assert max(pack.input_ids.numel() for pack in packs) <= value(loaded, "computed at a time")


# Nanoseconds of processor time for each number that the head of a model of width 64 puts out, as measured with torch
# 2.13 and TRL 1.16 on one core of an AMD EPYC: judged and trained in TRL's tiles, and with a frozen head in packs.
@pytest.mark.parametrize(
    ("in_packs", "judged_ns", "trained_ns"), [(False, 17.3, 54.4), (True, 10.4, 12.9)], ids=["rows", "packs"]
)
def test_the_head_takes_as_long_on_a_cpu_as_it_took(in_packs: bool, judged_ns: float, trained_ns: float) -> None:
    found = head(500, is_trained=False, in_packs=in_packs)
    numbers = 500 * 151_646
    assert found.judging_work(tokens=500).seconds == pytest.approx(numbers * judged_ns * 1e-9, rel=0.3)
    assert found.training_work(tokens=500).seconds == pytest.approx(numbers * trained_ns * 1e-9, rel=0.3)


# MiB that a program's peak rose by on the same machine, 18 of them with any head.
@pytest.mark.parametrize(
    ("tokens", "in_packs", "measured_mib"), [(1016, False, 1136), (512, True, 356)], ids=["rows", "packs"]
)
def test_the_head_takes_as_much_memory_on_a_cpu_as_it_took(tokens: int, in_packs: bool, measured_mib: int) -> None:
    planned = head(tokens, is_trained=False, in_packs=in_packs).memory_bytes / 2**20
    assert planned == pytest.approx(measured_mib, rel=0.15)
