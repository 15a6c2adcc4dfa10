"""A plan reckons with the speed that a self-test measured, says which one, and only for such cards."""

from pathlib import Path

import pytest

from containers.contracts.configs.selftest import MeasuredSpeed, Selftest
from containers.contracts.hardware import GpuProfile
from containers.contracts.identity import stage_profile
from containers.contracts.names import StageName
from tasks.config.loading import load_run_config
from tasks.plan.estimates import generation_work
from tasks.plan.inputs.gpu_speed import gpu_speed, missing_selftest, with_measured_speed
from tasks.plan.inputs.model_shape import read_model_shape, total_parameters
from tasks.plan.run_plan import draft_plan
from tasks.plan.text import render_plan
from tasks.store.selftests import keep_selftest, kept_selftests

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
PROFILE = GpuProfile(name="1x80gb", num_gpus=1, gpu_memory_gib=80, card=H100)
SPEED = MeasuredSpeed(flops=450e12, memory_bytes_per_s=2.7e12, block_token_s=0.5e-3)


def made(
    card: str = H100,
    *,
    speed: MeasuredSpeed | None = SPEED,
    host: str = "lab-1",
    made_at: str = "2026-11-30T10:00:00+00:00",
    num_gpus: int = 1,
    precision: str = "bf16",
) -> Selftest:
    return Selftest(
        made_at=made_at,
        host=host,
        profile="1x80gb",
        num_gpus=num_gpus,
        precision=precision,
        card=card,
        runtime="docker",
        sources="s",
        results=(),
        speed=speed,
        duration_s=400,
    )


def test_vllm_is_planned_with_its_measured_time_of_a_token(project: Path) -> None:
    shape = read_model_shape(project / "configs/model_shapes/qwen3-8b.yaml")
    slow = SPEED.model_copy(update={"graph_token_s": 1e-3})

    def seconds(speed: MeasuredSpeed) -> float:
        work = generation_work(
            shape,
            with_measured_speed(PROFILE, [made(speed=speed)]),
            total=total_parameters(shape, head="language"),
            sequences=64,
            batch=64,
            prompt_tokens=0,
            max_tokens=500,
            launches=None,
        )
        return work.seconds

    assert seconds(slow) == pytest.approx(500 * shape.num_hidden_layers * 1e-3)
    assert seconds(SPEED) < seconds(slow) / 2, "else as assumed for a graph"


def test_the_measured_speed_replaces_the_assumed_one_and_is_named() -> None:
    found = with_measured_speed(PROFILE, [made()])
    speed = gpu_speed(found)
    assert (speed.flops, speed.memory_bytes_per_s, speed.is_measured) == (450e12, 2.7e12, True)
    assert "450 TFLOP/s" in speed.words
    assert "the self-test of lab-1 with profile `1x80gb` on 2026-11-30" in speed.words
    assert gpu_speed(stage_profile(found, StageName.TRAIN_POLICY)).flops == 450e12, "of every stage"
    assert "rlhf selftest" in gpu_speed(PROFILE).words


@pytest.mark.parametrize(
    "other",
    [made(A100), made("Voodoo 3"), made(precision="float32"), made(num_gpus=0, card="AMD EPYC"), made(speed=None)],
    ids=["another card", "an unknown card", "another precision", "a processor", "no speed"],
)
def test_a_self_test_of_something_else_changes_nothing(other: Selftest) -> None:
    assert with_measured_speed(PROFILE, [other]) is PROFILE
    assert gpu_speed(with_measured_speed(PROFILE, [other, made()])).flops == 450e12


def test_a_card_that_no_table_knows_is_matched_by_its_name() -> None:
    odd = PROFILE.model_copy(update={"card": "Voodoo 3"})
    assert gpu_speed(with_measured_speed(odd, [made("Voodoo 3")])).is_measured
    assert not gpu_speed(with_measured_speed(odd, [made("Voodoo 2")])).is_measured


def test_generation_takes_what_a_measured_token_takes(project: Path) -> None:
    shape = read_model_shape(next((project / "configs/model_shapes").glob("qwen3-8b*")))
    total = total_parameters(shape, head="language")

    def seconds(profile: GpuProfile) -> float:
        return generation_work(
            shape, profile, total=total, sequences=1, batch=1, prompt_tokens=0, max_tokens=100, launches=2.0
        ).seconds

    assert seconds(with_measured_speed(PROFILE, [made()])) == pytest.approx(100 * 36 * 2 * 0.5e-3)
    assert seconds(PROFILE) == pytest.approx(100 * 36 * 2 * 0.8e-3)


def test_the_newest_self_test_of_the_store_counts_and_unreadable_ones_do_not(tmp_path: Path) -> None:
    old = made(host="old", made_at="2026-01-01T00:00:00+00:00")
    for one in (made(host="new"), old):
        path = keep_selftest(tmp_path, one)
    assert path.name == "1x80gb-old.json"
    (path.parent / "broken.json").write_text("{")
    assert [one.host for one in kept_selftests(tmp_path)] == ["new", "old"]
    assert list(kept_selftests(tmp_path / "nothing")) == []


def test_the_plan_of_a_run_is_by_the_self_test_in_its_store(project: Path, tmp_path: Path) -> None:
    run = load_run_config(
        project / "configs/runs/helpsteer3-qwen3-8b.yaml",
        overrides=[f"run.store_dir={tmp_path}", f"gpu_profile.card={H100}"],
        profile="1x80gb",
    ).config
    before = draft_plan(run)
    plans = [before]
    for faster in (2, 4):
        keep_selftest(tmp_path, made(speed=SPEED.model_copy(update={"flops": faster * 0.4 * 989e12})))
        plans.append(draft_plan(run))
    _, after, _ = plans
    times = [
        stage.time.value or 0.0
        for plan in plans
        for stage in plan.stages
        if stage.stage is StageName.TRAIN_REWARD_MODEL and stage.time is not None
    ]
    # The start of the stage and the copies of its model take as long as before.
    assert 0 < times[1] - times[2] == pytest.approx((times[0] - times[1]) / 2)
    assert "at an assumed speed" in render_plan(before)
    text = render_plan(after)
    assert "at the self-test's speed" in text and "at an assumed speed" not in text
    assert "measured by the self-test of lab-1 with profile `1x80gb` on 2026-11-30" in text


def test_a_run_on_cards_without_a_self_test_is_told_so() -> None:
    assert missing_selftest(PROFILE, [made(A100)]).startswith("No self-test of such GPUs is in the store")
    assert missing_selftest(PROFILE, [made(speed=None)]) == "", "one that failed was run"
    cpu = GpuProfile(name="cpu", num_gpus=0, precision="float32", tf32=False)
    assert missing_selftest(cpu, []) == ""
