"""A plan chooses: what fits with the fewest compromises, and each proposal is one that can be set and that fits."""

from pathlib import Path

import pytest

from containers.contracts.hardware import GIB
from tasks.config.loading import load_run_config
from tasks.plan.limits import memory_bytes
from tasks.plan.run_plan import RunPlan, UnfitRunError, draft_plan, plan_run
from tasks.plan.text import choice_lines, render_plan
from tests.unit.factories.plan_runs import run_by_ranks

_TRAININGS = ("train_reward_model", "train_policy")
PRODUCTION = "configs/runs/helpsteer3-qwen3-8b.yaml"


@pytest.fixture(autouse=True)
def in_the_project(project: Path, smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", "none")
    smi.chdir(project)


def _plan(profile: str, *overrides: str, model: Path | None = None) -> RunPlan:
    loaded = run_by_ranks(Path(PRODUCTION), profile=profile, overrides=overrides)
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
        assert choice.memory_bytes <= (0.92 if choice.changes else 1.0) * plan.profile.gpu_memory_gib * GIB


def test_eight_h100_reach_the_public_bars_by_settings_that_the_plan_proposes() -> None:
    """NeMo AutoModel: 12,473 tokens/s a GPU with LoRA on 8B; NeMo-RL: 512 samples of 2,048 tokens in 80 s at most."""
    longer = ("train_policy.max_completion_length=2048", "evaluate_policy.max_completion_length=2048")
    lengths = ("train_reward_model.max_length=4096", "evaluate_reward_model.max_length=4096")
    card = "gpu_profile.card=NVIDIA H100 80GB HBM3"
    plan = _plan("8x80gb", card, *longer, *lengths, "train_policy.global_batch_size=512")
    best = {name: next(one for one in plan.choices if one.stage.value == name).speed for name in _TRAININGS}
    assert best["train_reward_model"].value > 12_473, "tokens a second and GPU"
    assert best["train_policy"].value > 6.4, "completions a second"
    assert "train_policy.rollout_engine=vllm" in _changes(plan, "train_policy")[0]
    assert "vllm needs a stage image that has it" in choice_lines(plan)[-1]


def test_a_run_by_vllm_that_does_not_fit_is_offered_the_ranks_own_writing(tmp_path: Path) -> None:
    """Half of 24 GiB holds no 8B model, so the ranks write, with weights of 4 bits."""
    draft = draft_plan(load_run_config(Path(PRODUCTION), profile="1x24gb").config, chooses=True)
    assert {mistake.key for mistake in draft.mistakes} >= {"train_policy.vllm_memory_fraction"}
    for changes in _changes(draft, "train_policy"):
        assert {"train_policy.rollout_engine=shared_prompts", "train_policy.quantization=nf4"} <= set(changes)
        assert _plan("1x24gb", *changes).mistakes == ()
    assert "vllm needs" not in "".join(choice_lines(draft)), "none of them uses it"
    fits = plan_run(load_run_config(Path(PRODUCTION), profile="8x80gb"), chooses=True)
    assert () in _changes(fits, "train_policy")
    assert not any("shared_prompts" in str(changes) for changes in _changes(fits, "train_policy")), "vLLM is faster"


def test_vllm_is_not_proposed_where_it_cannot_hold_the_model() -> None:
    plan = _plan("1x24gb")
    assert not any("vllm" in change for changes in _changes(plan, "train_policy") for change in changes)


def test_full_precision_comes_before_fewer_bits_and_the_faster_before_the_slower() -> None:
    plan = _plan("1x24gb")
    policies = _changes(plan, "train_policy")
    assert policies and all("train_policy.quantization=nf4" in changes for changes in policies if changes)
    first, second = _changes(plan, "train_reward_model")[:2]
    assert "quantization" not in str(first)
    assert "train_reward_model.quantization=nf4" in second
    for stage in ("train_reward_model", "train_policy"):
        of_bits = [
            (choice.has_fewer_bits, choice.seconds)
            for choice in plan.choices
            if choice.stage.value == stage and choice.changes
        ]
        assert [fewer for fewer, _ in of_bits] == sorted(fewer for fewer, _ in of_bits)
    large = _plan("8x80gb")
    fastest = _changes(large, "train_policy")[0]
    assert "train_policy.gradient_checkpointing=false" in fastest, "there is memory for it, and it is faster"
    assert () in _changes(large, "train_policy")


def test_they_are_printed_as_they_can_be_typed_and_only_where_wanted() -> None:
    text = render_plan(_plan("1x24gb"))
    assert "Settings that fit 24 GiB with room to spare" in text
    assert "--set train_policy.quantization=nf4" in text
    loaded = run_by_ranks(Path(PRODUCTION), profile="1x24gb")
    assert "Settings that fit" not in render_plan(plan_run(loaded))
    assert plan_run(load_run_config("configs/runs/demo.yaml"), chooses=True).choices == ()


def test_a_policy_with_all_its_weights_is_divided_where_it_does_not_fit_whole() -> None:
    found = _changes(_plan("8x80gb", "train_policy.lora=null", "train_policy.distribution=fsdp"), "train_policy")
    assert () in found
    assert all("gpu_profile" not in str(changes) for changes in found)


def test_memory_that_is_left_keeps_some_layers_and_the_saved_time_is_said() -> None:
    plan = _plan("8x80gb")
    own = next(stage for stage in plan.stages if stage.stage.value == "train_reward_model")
    assert own.time is not None and own.time.value is not None
    found = {choice.changes: choice for choice in plan.choices if choice.stage is own.stage}
    assert () in found, "the run's own settings are there to compare with"
    some = [changes for changes in found if "gradient_checkpointing=2" in str(changes)]
    assert len(some) == 1, "of settings that differ in their number alone, the best is proposed"
    saved = found[some[0]].saved_seconds
    assert saved == pytest.approx(own.time.value - (found[some[0]].seconds or 0)) and saved is not None and saved > 0
    line = next(line for line in render_plan(plan).splitlines() if "gradient_checkpointing=2" in line)
    assert "min less)" in line


def test_larger_packs_are_proposed_where_launching_kernels_takes_the_time() -> None:
    """On a card with 1,536 tokens at a time, a larger pack has room once the weights have 4 bits."""
    packs = [change for changes in _changes(_plan("1x24gb"), "train_policy") for change in changes if "pack" in change]
    assert "train_policy.pack_tokens=3072" in packs


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
        proposed = _changes(plan, stage)
        # The first may also keep layers or have other packs, which is faster.
        assert set(changes) <= set(proposed[0])
        assert changes in [tuple(one for one in found if "pack_tokens" not in one) for found in proposed]


@pytest.mark.shared_data
def test_settings_are_chosen_for_a_run_that_does_not_fit_as_configured(shared_data: Path) -> None:
    with pytest.raises(UnfitRunError, match=r"train_policy\.quantization: 37 GiB per GPU") as caught:
        _plan("1x24gb", model=shared_data / "model_configs" / "Qwen__Qwen3-14B.json")
    assert "train_policy.quantization=nf4" in "\n".join(choice_lines(caught.value.plan))
