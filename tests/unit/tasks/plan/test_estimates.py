"""Estimates are held to what was measured: within a factor of two, they are worth planning by."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

from containers.contracts.hardware import GIB, GpuProfile
from containers.contracts.names import StageName
from tasks.config.loading import load_run_config
from tasks.plan import estimates
from tasks.plan.estimates import TrainingLoad
from tasks.plan.host import host_memory
from tasks.plan.inputs.model_shape import ModelShape, read_model_shape, total_parameters
from tasks.plan.run_plan import plan_run
from tests.unit.factories.run_files import PROFILE, write_run

# configs/runs/real-small.yaml: two layers of width 64 below a vocabulary of 151,646.
SMALL_MODEL = {
    "num_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "vocabulary_size": None,
}
SMALL_POLICY = {
    "global_batch_size": 16,
    "max_prompt_length": 192,
    "max_completion_length": 32,
    "lora": {"r": 16},
    "gradient_checkpointing": False,
    "schedule": {"max_steps": 10, "save_steps": 5},
}


def seconds_of(tmp_path: Path, stage: StageName, **sections: object) -> float:
    """Planned seconds of the stage on a CPU, its start left out."""
    (tmp_path / "qwen.tiktoken").write_text("eA== 0\n" * 151_643)
    for name, rows in (("train", 2500), ("validation", 166)):
        (tmp_path / f"{name}.jsonl").write_text("{}\n" * rows)
    path = write_run(
        tmp_path,
        gpu_profile={**PROFILE, "max_per_device_batch_size": 32, "num_threads": 1},
        dataset={"train": str(tmp_path / "train.jsonl"), "validation": str(tmp_path / "validation.jsonl")},
        tokenizer_file=str(tmp_path / "qwen.tiktoken"),
        filter_dataset={"validation_parts": {"minimum_prompts": 1000}},  # all validation pairs are evaluated
        build_base_model=SMALL_MODEL,
        train_reward_model={"max_length": 384, "lora": {"r": 16}},
        evaluate_policy={"max_prompt_length": 192, "max_completion_length": 32},
        **{"evaluate_reward_model": {"max_length": 384}, **sections},
    )
    planned = next(item for item in plan_run(load_run_config(path)).stages if item.stage is stage).time
    assert planned is not None and planned.value is not None
    return planned.value - estimates.START_SECONDS


def test_a_policy_with_a_large_vocabulary_takes_as_long_on_a_cpu_as_it_took(tmp_path: Path) -> None:
    planned = seconds_of(tmp_path, StageName.TRAIN_POLICY, train_policy={**SMALL_POLICY, "pack": False})
    measured = 216  # CPU seconds of its ten steps on padded rows
    assert measured / 2 < planned < measured * 2


def test_fine_tuning_with_a_large_vocabulary_takes_as_long_on_a_cpu_as_it_took(tmp_path: Path) -> None:
    sft = {
        "global_batch_size": 8,
        "max_length": 128,
        "schedule": {"max_steps": 4, "eval_steps": 4},
    }
    planned = seconds_of(tmp_path, StageName.TRAIN_SFT, train_sft=sft, train_policy=SMALL_POLICY)
    # Seconds of its four packed steps, and of an evaluation on 42 pairs, of a thread at 60 GFLOP/s; the plan's has 95.
    measured = (6.3 + 166 / 42 * 3.4) * 60 / 95
    assert measured / 2 < planned < measured * 2


def test_edited_answers_are_part_of_the_time_of_a_certificate(tmp_path: Path) -> None:
    """166 pairs are 332 conversations; 64 of them, edited, are scored as 16 more each, 166 at most."""

    def seconds(num_edited: int) -> float:
        config = {"max_length": 384, "num_edited_pairs": num_edited, "num_bootstrap": 100}
        stage = StageName.EVALUATE_REWARD_MODEL
        return seconds_of(tmp_path, stage, train_policy=SMALL_POLICY, evaluate_reward_model=config)

    plain, usual, all_of_them = seconds(0), seconds(64), seconds(1000)
    assert usual / plain == pytest.approx(1 + 64 * 16 / 332, rel=0.05)
    assert all_of_them / plain == pytest.approx(1 + 166 * 16 / 332, rel=0.05)


@pytest.fixture
def shape(project: Path) -> ModelShape:
    return read_model_shape(project / "configs/model_shapes/qwen3-8b.yaml")


def load(shape: ModelShape, *, uses_adapters: bool = True) -> TrainingLoad:
    total = total_parameters(shape, head="language")
    return TrainingLoad(
        shape=shape,
        total=total,
        trainable=174_587_904 if uses_adapters else total,
        forward_tokens=2048,
        mean_tokens=512,
        judged_tokens=0,
        gradient_checkpointing=True,
        uses_adapters=uses_adapters,
    )


def gpus(number: int, **changes: object) -> GpuProfile:
    return GpuProfile(name="box", num_gpus=number, num_processes=number, gpu_memory_gib=48, **changes)


def test_layers_that_keep_their_activations_cost_memory_and_save_work(shape: ModelShape) -> None:
    """Of 36 layers, 12 keep them with 3, and 18 with 2."""
    again = {False: 0, 2: 18, 3: 24, True: 36}
    loads = {n: dataclasses.replace(load(shape), forward_tokens=8192, gradient_checkpointing=n) for n in again}
    work = {n: estimates.training_work(one, gpus(1), sequences=100).operations for n, one in loads.items()}
    memory = {n: estimates.training_memory(one, gpus(1))["activations"] for n, one in loads.items()}
    for n, layers in again.items():
        assert loads[n].kept_layers == 36 - layers
        assert work[n] / work[False] == pytest.approx(1 + 0.5 * layers / 36), "2 beside 4 operations a weight"
    assert memory[True] < memory[3] < memory[2] < memory[False]
    assert memory[2] - memory[3] == pytest.approx(6 * (memory[3] - memory[True]) / 12, rel=1e-6)


def test_small_packs_take_at_least_the_time_to_launch_their_kernels(shape: ModelShape) -> None:
    small = shape.model_copy(update={"hidden_size": 256, "intermediate_size": 512})
    seconds = [
        estimates.training_work(
            dataclasses.replace(load(small), forward_tokens=tokens), gpus(1), sequences=1000
        ).seconds
        for tokens in (2048, 4096)
    ]
    # 250 packs, 36 layers three times (forward, again, backward), 0.8 ms and 1.5 times as much with adapters.
    assert seconds[0] == pytest.approx(250 * 36 * 3 * 0.8e-3 * 1.5)
    assert seconds[1] == pytest.approx(seconds[0] / 2)
    large = [
        estimates.training_work(
            dataclasses.replace(load(shape), forward_tokens=tokens), gpus(1), sequences=1000
        ).seconds
        for tokens in (8192, 16_384)
    ]
    assert large[0] == large[1], "computing takes longer than launching"


def test_ranks_share_the_pages_of_weights_that_are_loaded_as_they_lie_in_their_files(shape: ModelShape) -> None:
    one, how = host_memory(load(shape), gpus(1), on_device=0)
    seven, _ = host_memory(load(shape), gpus(7), on_device=0)
    assert seven - one == 6 * 3 * GIB
    assert round(seven / GIB) == 52
    assert how == "1 program(s), the weights' files, which all share, and a copy to save"


@pytest.mark.parametrize(
    ("uses_adapters", "precision"), [(False, "bf16"), (True, "float32")], ids=["all weights", "float32"]
)
def test_each_rank_holds_its_own_copy_of_weights_that_are_converted(
    shape: ModelShape, uses_adapters: bool, precision: str
) -> None:
    work, profile = load(shape, uses_adapters=uses_adapters), gpus(7, precision=precision, tf32=False)
    needed, how = host_memory(work, profile, on_device=0)
    assert needed > 7 * 4 * work.total
    assert "in each of them the weights, read as float32" in how


def test_weights_published_in_float32_are_converted_for_a_bf16_profile(shape: ModelShape) -> None:
    needed, _ = host_memory(load(shape.model_copy(update={"dtype": "float32"})), gpus(7), on_device=0)
    assert needed > 7 * 2 * total_parameters(shape, head="language")


def test_without_a_gpu_everything_is_host_memory(shape: ModelShape) -> None:
    profile = GpuProfile(name="cpu", num_gpus=0, num_processes=2, precision="float32")
    needed, _ = host_memory(load(shape), profile, on_device=5 * GIB)
    assert needed == 2 * (5 * GIB + int(0.7 * GIB))


def parts_of(shape: ModelShape, *, uses_adapters: bool, distribution: str) -> dict[str, int]:
    profile = gpus(8, distribution=distribution)
    return dict(estimates.training_memory(load(shape, uses_adapters=uses_adapters), profile))


def test_ranks_that_divide_a_model_hold_a_share_of_its_states(shape: ModelShape) -> None:
    """16 bytes a weight are 122 GiB for Qwen3-8B: too many for one GPU of 80 GiB, and 15 for each of eight."""
    whole, divided = (parts_of(shape, uses_adapters=False, distribution=how) for how in ("ddp", "fsdp"))
    states = "trained weights, gradients, AdamW"
    assert divided[f"{states} / 8"] == whole[states] / 8
    assert whole["activations"] == divided["activations"]
    assert sum(whole.values()) / GIB > 122 and sum(divided.values()) / GIB < 60


@pytest.mark.parametrize("uses_adapters", [False, True])
def test_a_divided_model_needs_room_for_the_whole_of_it_before_and_after(
    shape: ModelShape, uses_adapters: bool
) -> None:
    work = load(shape, uses_adapters=uses_adapters)
    parts = parts_of(shape, uses_adapters=uses_adapters, distribution="fsdp")
    whole = work.total * (2 if uses_adapters else 4)
    shares = sum(count for name, count in parts.items() if name.endswith("/ 8"))
    assert sum(parts.values()) == shares + whole + parts["CUDA context"]
    # While it trains, long examples take more than that.
    long = dict(estimates.training_memory(replace(work, forward_tokens=10**6), gpus(8, distribution="fsdp")))
    assert (
        "more while the model is whole (load, save)" in parts
        and "more while the model is whole (load, save)" not in long
    )
