"""What cannot fit, or cannot be had, is refused in one sentence with the key to change and the nearest value."""

from pathlib import Path

import pytest
from fakes.warm_rlhf import WarmRlhf

from containers.contracts.hardware import GIB
from containers.contracts.names import StageName
from tasks.config.errors import InvalidConfigError
from tasks.plan.run_plan import draft_plan, plan_run
from tasks.plan.text import render_plan
from tests.unit.factories.plan_runs import pair, run_by_ranks, run_on

PRODUCTION = "configs/runs/helpsteer3-qwen3-8b.yaml"


@pytest.fixture(autouse=True)
def in_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


def refusals(*overrides: str, profile: str | None = None) -> list[str]:
    with pytest.raises(InvalidConfigError) as caught:
        plan_run(run_by_ranks(Path(PRODUCTION), overrides=overrides, profile=profile))
    return [str(mistake) for mistake in caught.value.mistakes]


def test_whole_weights_that_no_gpu_of_the_profile_holds_are_refused_for_adapters() -> None:
    (said,) = refusals("train_reward_model.lora=null", profile="1x48gb")
    assert said == (
        "train_reward_model.lora: 117 GiB per GPU are estimated even with one example at a time and gradient "
        "checkpointing (trained weights, gradients, AdamW 113 GiB, activations 2 GiB), and profile `1x48gb` has 48. "
        "The smallest change that fits: "
        "`train_reward_model.lora={r: 64, alpha: 128} train_reward_model.trainable=lora` (21 GiB)."
    )
    # The check says all else too, and the mistake with it.
    assert "MORE THAN THE GPU HAS" in render_plan(
        draft_plan(run_by_ranks(Path(PRODUCTION), overrides=["train_reward_model.lora=null"]).config)
    )


def test_host_memory_is_offered_before_other_weights_are_trained() -> None:
    (said,) = refusals("train_reward_model.lora=null")
    assert said.startswith("train_reward_model.optimizer.offload: 117 GiB per GPU are estimated")
    both = "`train_reward_model.optimizer.offload=true gpu_profile.distribution=fsdp`"
    assert said.endswith(f"The smallest change that fits: {both} (30 GiB).")
    overrides = ["lora=null", "optimizer.offload=true"]
    advised = [f"train_reward_model.{one}" for one in overrides] + ["gpu_profile.distribution=fsdp"]
    assert plan_run(run_by_ranks(Path(PRODUCTION), overrides=advised)).mistakes == ()


def test_no_change_is_offered_that_another_training_refuses() -> None:
    """Divided, the reward model would fit; but that divides the fine-tuning too, whose weights have 8 bits."""
    overrides = ["train_reward_model.lora=null", "train_sft.quantization=int8", "train_sft.lora={r: 8}"]
    said = refusals(*overrides, profile="8x80gb")
    assert not any("fsdp" in text for text in said)


def test_the_advised_adapters_are_all_that_a_run_with_whole_weights_has_to_change() -> None:
    section = "train_reward_model"
    whole, adapters = f"{section}.trainable=full", f"{section}.lora={{r: 64, alpha: 128}}"
    assert (
        "`train_reward_model.lora={r: 64, alpha: 128} train_reward_model.trainable=lora`"
        in refusals(whole, f"{section}.lora=null", profile="1x48gb")[0]
    )
    with pytest.raises(InvalidConfigError, match="trainable is `full`, which has no adapters"):
        run_by_ranks(Path(PRODUCTION), overrides=[whole, adapters])
    advised = run_by_ranks(Path(PRODUCTION), overrides=[whole, adapters, f"{section}.trainable=lora"])
    assert plan_run(advised).mistakes == ()


def test_a_policy_has_no_kind_of_training_to_change_beside_its_adapters() -> None:
    (said,) = refusals("train_policy.lora=null")
    assert "`train_policy.lora={r: 64, alpha: 128}`" in said


def test_whole_weights_of_a_policy_are_offered_to_be_divided_and_are_gathered_to_write() -> None:
    (said,) = refusals("train_policy.lora=null", profile="8x80gb")
    assert said.startswith("train_policy.distribution: 173 GiB per GPU are estimated")
    assert said.endswith("The smallest change that fits: `train_policy.distribution=fsdp` (66 GiB).")
    overrides = ["train_policy.lora=null", "train_policy.distribution=fsdp"]
    plan = plan_run(run_by_ranks(Path(PRODUCTION), overrides=overrides, profile="8x80gb"))
    assert plan.mistakes == ()
    (stage,) = [stage for stage in plan.stages if stage.stage is StageName.TRAIN_POLICY]
    parts = {figure.name: figure.value for figure in stage.memory}
    total = 8_190_735_360
    assert parts["trained weights, gradients, AdamW / 8"] == total * 16 / 8
    assert parts["reference policy"] == total * 2, "in bfloat16, as the divided policy computes"
    assert parts["reward model"] < GIB, "an adapter on the reference's weights"
    rest = ("gathered layers", "activations", "generation cache", "more while the model is whole (load, save, write)")
    assert sum(parts[name] for name in rest) == total * 4, "whole in float32 before and after, in bfloat16 to write"


def test_what_is_offloaded_leaves_the_gpu_and_is_counted_on_the_host() -> None:
    divided = ["train_policy.lora=null", "train_policy.distribution=fsdp"]

    def planned(*more: str) -> tuple[dict[str, float], float]:
        plan = plan_run(run_by_ranks(Path(PRODUCTION), overrides=[*divided, *more], profile="8x80gb"))
        (stage,) = [stage for stage in plan.stages if stage.stage is StageName.TRAIN_POLICY]
        assert stage.host_memory is not None and stage.host_memory.value is not None
        return {figure.name: figure.value or 0.0 for figure in stage.memory}, stage.host_memory.value

    (plain, host), (frozen, with_frozen) = planned(), planned("train_policy.offload_frozen=true")
    total = 8_190_735_360
    assert plain["reference policy"] == frozen["a frozen model in its turn"] == total * 2
    assert with_frozen - host == 8 * total * 2, "each rank has its own"
    parts, with_all = planned("train_policy.optimizer.offload=true")
    assert not any("AdamW" in name for name in parts)
    assert with_all - host == total * 16
    with pytest.raises(
        InvalidConfigError, match=r"train_policy.optimizer.offload: needs train_policy.distribution fsdp"
    ):
        run_by_ranks(Path(PRODUCTION), overrides=["train_policy.optimizer.offload=true"], profile="8x80gb")


def test_whole_weights_are_offered_to_be_divided_over_the_gpus() -> None:
    (said,) = refusals("train_reward_model.lora=null", profile="8x80gb")
    assert said.startswith("gpu_profile.distribution: train_reward_model: 117 GiB per GPU are estimated")
    assert "The smallest change that fits: `gpu_profile.distribution=fsdp` (4" in said
    plan = plan_run(
        run_by_ranks(
            Path(PRODUCTION),
            overrides=[
                "train_reward_model.lora=null",
                "gpu_profile.distribution=fsdp",
            ],
            profile="8x80gb",
        )
    )
    assert plan.mistakes == ()
    text = render_plan(plan)
    assert "8 rank(s), bf16, over which train_sft and train_reward_model divide a model (fsdp)" in text
    assert text.count("trained weights, gradients, AdamW / 8") == 1


def test_examples_that_are_too_long_are_refused_for_the_longest_that_fit() -> None:
    length = 65_536
    said = refusals(
        *(f"{stage}.max_length={length}" for stage in ("train_reward_model", "evaluate_reward_model")),
        profile="1x48gb",
    )
    assert [text.split(":")[0] for text in said] == ["train_reward_model.max_length"]
    assert "The smallest change that fits: `train_reward_model.max_length=16384` (" in said[0]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The shape of a model of 32B parameters."""
    shape = "model_type: llama\nnum_hidden_layers: 64\nhidden_size: 5120\nintermediate_size: 25600\n"
    heads = "num_attention_heads: 64\nnum_key_value_heads: 8\nhead_dim: 128\nvocab_size: 151936\n"
    (tmp_path / "large.yaml").write_text(shape + heads)
    return tmp_path / "large.yaml"


def refusals_of(model: Path, *overrides: str, profile: str) -> list[str]:
    loaded = run_by_ranks(Path(PRODUCTION), overrides=overrides, profile=profile)
    with pytest.raises(InvalidConfigError) as caught:
        plan_run(loaded, model_config=model)
    return [str(mistake) for mistake in caught.value.mistakes]


def test_what_trains_is_quantized_and_what_answers_or_scores_is_held_by_several_gpus(large: Path) -> None:
    said = refusals_of(large, profile="8x48gb")
    fewer_bits = [line for line in said if line.endswith("`train_reward_model.quantization=nf4` (31 GiB).")]
    assert len(fewer_bits) == 1 and fewer_bits[0].startswith("train_reward_model.quantization: 74 GiB per GPU")
    together = [line for line in said if line.startswith("gpu_profile.tensor_parallel: ")]
    assert [line.split(": ")[1] for line in together] == [
        "evaluate_reward_model", "sample_completions", "evaluate_policy",
    ]  # fmt: skip
    assert all("The smallest change that fits: `gpu_profile.tensor_parallel=2` (3" in line for line in together)
    advised = ["train_reward_model.quantization=nf4", "train_policy.quantization=nf4", "gpu_profile.tensor_parallel=2"]
    plan = plan_run(run_by_ranks(Path(PRODUCTION), overrides=advised, profile="8x48gb"), model_config=large)
    assert plan.mistakes == ()


def test_gpus_that_do_not_divide_the_heads_are_refused_with_those_that_do(large: Path) -> None:
    first = refusals_of(large, "gpu_profile.tensor_parallel=6", profile="8x141gb")[0]
    assert first == (
        "gpu_profile.tensor_parallel: 6 GPUs cannot divide 64 query heads and 8 heads of keys and values. "
        "Use 1, 2, 4 or 8."
    )
    with pytest.raises(InvalidConfigError, match="tensor_parallel is 9, and the profile has 8 GPUs"):
        run_by_ranks(Path(PRODUCTION), overrides=["gpu_profile.tensor_parallel=9"], profile="8x141gb")


def test_weights_of_fewer_bits_that_the_ranks_divide_are_offered_where_neither_fits_alone(large: Path) -> None:
    said = refusals_of(large, "gpu_profile.gpu_memory_gib=30", profile="8x40gb")
    (training,) = [line for line in said if line.startswith("train_reward_model")]
    assert (
        "The smallest change that fits: `train_reward_model.quantization=nf4 gpu_profile.distribution=fsdp` (2"
        in training
    )


@pytest.mark.parametrize("length", [2048, 4096], ids=["a smaller batch", "checkpointing"])
def test_what_only_the_ladder_makes_fit_is_a_warning_and_no_refusal(length: int) -> None:
    settings = [f"{stage}.max_length={length}" for stage in ("train_reward_model", "evaluate_reward_model")]
    settings += ["train_reward_model.gradient_checkpointing=false", "train_reward_model.pack=false"]
    plan = plan_run(run_by_ranks(Path(PRODUCTION), overrides=settings))
    assert any(warning.startswith("train_reward_model: ") for warning in plan.warnings)
    assert plan.mistakes == ()


@pytest.mark.parametrize("debug", [False, True])
def test_a_sample_of_more_rows_than_there_are_is_refused_but_not_in_a_debug_run(tmp_path: Path, debug: bool) -> None:
    tags = {"run": {"name": "small", "tags": ["debug"] if debug else []}}
    loaded = run_on(tmp_path, [pair(10, 2, 3)] * 150, filter_dataset={"max_rows": 151}, **tags)
    said = [str(mistake) for mistake in draft_plan(loaded.config).mistakes]
    assert said == ([] if debug else [
        "filter_dataset.max_rows: 151 is more than the 150 rows that the data have before any filter, so it would "
        "sample nothing. Use at most 150, or null for all."
    ])  # fmt: skip
    as_many = run_on(tmp_path, [pair(10, 2, 3)] * 150, filter_dataset={"max_rows": 150}, **tags)
    assert draft_plan(as_many.config).mistakes == ()


def test_a_sample_beyond_the_published_set_is_refused_before_it_is_downloaded() -> None:
    (said,) = refusals("filter_dataset.max_rows=30000")
    assert said.startswith("filter_dataset.max_rows: 30,000 is more than the 22,380 rows that the set has in English")


def test_prompts_that_cannot_be_held_out_are_a_warning_only_where_somebody_asked_for_them(tmp_path: Path) -> None:
    rows = [pair(10, 2, 3)] * 150
    asked = plan_run(run_on(tmp_path, rows, evaluate_policy={"max_prompts": 100}))
    assert asked.warnings == (
        "evaluate_policy.max_prompts: 100 is more than the 3 prompts that are held out at most; all of them are used.",
    )
    assert plan_run(run_on(tmp_path, rows)).warnings == ()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "train_policy.num_generations=5",
            "train_policy.global_batch_size: global_batch_size 112 cannot be divided over 7 ranks in groups of 5: it "
            "must be a multiple of 35. Nearest: 105 or 140.",
        ),
        (
            "train_policy.global_batch_size=100",
            "train_policy.global_batch_size: global_batch_size 100 cannot be divided over 7 ranks in groups of 4: it "
            "must be a multiple of 28. Nearest: 84 or 112.",
        ),
    ],
)
def test_completions_that_do_not_divide_the_batch_are_refused_with_the_nearest_sizes(override: str, said: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        run_by_ranks(Path(PRODUCTION), overrides=[override])
    (mistake,) = caught.value.mistakes
    assert str(mistake).startswith(said)


def test_the_schedule_that_users_bring_along_is_refused_on_each_profile_with_its_own_steps() -> None:
    brought = ("train_reward_model.schedule.eval_steps=200", "train_reward_model.schedule.save_steps=400")
    for profile, steps, mistakes in (("7x48gb", 180, "and"), ("4x48gb", 210, "save_steps 400 would never save")):
        (said,) = refusals(*brought, profile=profile)
        assert said.startswith("train_reward_model.schedule: ") and f"the run has {steps} steps" in said
        assert mistakes in said and f"Use at most {steps}" in said
    # On one GPU the batch is 16: 1,259 steps, and the schedule works.
    plan_run(run_by_ranks(Path(PRODUCTION), overrides=list(brought), profile="1x48gb"))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (("train_reward_model.schedule.eval_steps=200",), "train_reward_model.schedule"),
        (("filter_dataset.max_rows=50000",), "filter_dataset.max_rows"),
        (("train_policy.num_generations=5",), "train_policy.global_batch_size"),
        (("train_policy.lora=null",), "train_policy.lora"),
    ],
)
def test_the_command_says_one_clean_sentence_and_ends_with_2(
    settings: tuple[str, ...], key: str, project: Path, warm_rlhf: WarmRlhf
) -> None:
    options = [word for setting in settings for word in ("--set", setting)]
    ran = warm_rlhf("plan", "-c", PRODUCTION, "--profile", "7x48gb", *options, cwd=project)
    assert (ran.returncode, ran.stdout) == (2, "")
    head, line, *rest = ran.stderr.splitlines()
    assert (head, rest) == (f"{PRODUCTION} has 1 mistake:", [])
    assert line.startswith(f"  {key}: ")


@pytest.mark.parametrize("for_vllm", [1, 2])
def test_larger_gpus_are_advised_for_a_policy_beside_vllm_and_none_that_leave_no_rank(for_vllm: int) -> None:
    vllm = ("train_policy.rollout_engine=vllm", f"train_policy.vllm_gpus={for_vllm}")
    batch = ("train_policy.num_generations=4", "train_policy.global_batch_size=168")
    said = refusals("gpu_profile.gpu_memory_gib=10", *vllm, *batch, profile="8x48gb")
    (policy,) = [line for line in said if "GiB per GPU are estimated" in line and "train_policy" in line]
    assert "The smallest change that fits: `--profile 4x24gb` (21 GiB)" in policy


def test_a_policy_that_fits_with_another_engine_or_fewer_completions_at_a_time_is_told_so(project: Path) -> None:
    shape = project / "configs/model_shapes/qwen3-8b.yaml"
    vllm = ("train_policy.rollout_engine=vllm", "train_policy.vllm_memory_fraction=0.95")
    (said,) = refusals_of(shape, *vllm, profile="8x48gb")
    advised = "train_policy.rollout_engine=shared_prompts train_policy.vllm_memory_fraction=null"
    assert "vLLM, model and cache, beyond the activations 45 GiB" in said and f"`{advised}` (" in said
    assert (
        plan_run(run_by_ranks(Path(PRODUCTION), overrides=[*vllm, *advised.split()], profile="8x48gb")).mistakes == ()
    )
    many = ("train_sft=null", "train_policy.global_batch_size=336", "train_reward_model.global_batch_size=16")
    (said,) = refusals_of(shape, *many, profile="1x24gb")
    assert "(generation cache 35 GiB, frozen weights 15 GiB)" in said
    assert "The smallest change that fits: `train_policy.global_batch_size=" in said


def test_settings_without_effect_and_layers_that_are_not_there_are_mistakes() -> None:
    overrides = ("train_policy.vllm_sleeps=false", "train_policy.vllm_memory_fraction=0.5")
    with pytest.raises(InvalidConfigError) as caught:
        run_by_ranks(Path(PRODUCTION), overrides=overrides)
    said = [str(mistake) for mistake in caught.value.mistakes]
    assert [line.split(": has no effect")[0] for line in said] == [
        "train_policy.vllm_memory_fraction", "train_policy.vllm_sleeps",
    ]  # fmt: skip
    (said_of_layers,) = refusals("train_reward_model.gradient_checkpointing=99")
    assert said_of_layers == (
        "train_reward_model.gradient_checkpointing: every 99-th of 36 layers is none, so all are computed again. Use "
        "true, or at most 36."
    )


def test_evaluations_are_offered_smaller_batches_and_profiles_that_can_be_set(large: Path) -> None:
    said = refusals("evaluate_policy.batch_size=256", profile="1x24gb")
    assert said and all("The smallest change that fits: `evaluate_policy.batch_size=" in line for line in said)
    both = refusals_of(large, "gpu_profile.tensor_parallel=4", profile="4x24gb")
    larger = [line for line in both if "--profile 1x" in line]
    assert larger and all("gpu_profile.tensor_parallel=1`" in line for line in larger)
