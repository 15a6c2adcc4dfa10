"""A plan chooses: what fits with the fewest compromises, and each proposal is one that can be set and that fits."""

from pathlib import Path

import pytest

from containers.contracts.hardware import GIB
from tasks.config.loading import load_run_config
from tasks.plan.limits import memory_bytes
from tasks.plan.run_plan import RunPlan, plan_run
from tasks.plan.text import render_plan

PRODUCTION = "configs/runs/helpsteer3-qwen3-8b.yaml"


@pytest.fixture(autouse=True)
def in_the_project(project: Path, smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", "none")
    smi.chdir(project)


def _plan(profile: str, *overrides: str, model: Path | None = None) -> RunPlan:
    loaded = load_run_config(PRODUCTION, profile=profile, overrides=list(overrides))
    return plan_run(loaded, model_config=model, chooses=True)


def _changes(plan: RunPlan, stage: str) -> list[tuple[str, ...]]:
    return [choice.changes for choice in plan.choices if choice.stage.value == stage]


@pytest.mark.waits
@pytest.mark.parametrize("profile", ["1x24gb", "7x48gb", "8x80gb"])
def test_each_proposal_can_be_set_and_has_the_memory_and_time_that_it_says(profile: str) -> None:
    plan = _plan(profile)
    assert plan.choices
    for choice in plan.choices:
        changed = _plan(profile, *choice.changes)
        (stage,) = [stage for stage in changed.stages if stage.stage is choice.stage]
        assert memory_bytes(stage) == pytest.approx(choice.memory_bytes)
        assert stage.time is not None and stage.time.value == pytest.approx(choice.seconds)
        assert choice.memory_bytes <= 0.92 * plan.profile.gpu_memory_gib * GIB


def test_full_precision_comes_before_fewer_bits_and_the_faster_before_the_slower() -> None:
    plan = _plan("1x24gb")
    assert _changes(plan, "train_policy") == [("train_policy.quantization=nf4",)]
    first, second = _changes(plan, "train_reward_model")[:2]
    assert "quantization" not in str(first)
    assert "train_reward_model.quantization=nf4" in second
    large = _plan("8x80gb")
    fastest = _changes(large, "train_policy")[0]
    assert "train_policy.gradient_checkpointing=false" in fastest, "there is memory for it, and it is faster"
    assert () in _changes(large, "train_policy")


def test_they_are_printed_as_they_can_be_typed_and_only_where_wanted() -> None:
    text = render_plan(_plan("1x24gb"))
    assert "Settings that fit 24 GiB with room to spare" in text
    assert "--set train_policy.quantization=nf4" in text
    loaded = load_run_config(PRODUCTION, profile="1x24gb")
    assert "Settings that fit" not in render_plan(plan_run(loaded))
    assert plan_run(load_run_config("configs/runs/demo.yaml"), chooses=True).choices == ()


def test_a_policy_with_all_its_weights_is_divided_where_it_does_not_fit_whole() -> None:
    found = _changes(_plan("8x80gb", "train_policy.lora=null", "train_policy.distribution=fsdp"), "train_policy")
    assert () in found
    assert all("gpu_profile" not in str(changes) for changes in found)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("profile", "model", "wanted"),
    [
        ("7x48gb", "Qwen__Qwen3-14B", {"train_reward_model": (), "train_policy": ()}),
        ("1x24gb", "Qwen__Qwen3-8B", {"train_policy": ("train_policy.quantization=nf4",)}),
        (
            "8x80gb",
            "Qwen__Qwen3-32B",
            {
                "train_reward_model": ("gpu_profile.distribution=fsdp",),
                "train_policy": ("train_policy.quantization=nf4",),
            },
        ),
    ],
)
def test_the_models_and_machines_of_the_first_document_have_a_plan(
    shared_data: Path, profile: str, model: str, wanted: dict[str, tuple[str, ...]]
) -> None:
    plan = _plan(profile, model=shared_data / "model_configs" / f"{model}.json")
    for stage, changes in wanted.items():
        assert _changes(plan, stage)[0] == changes
