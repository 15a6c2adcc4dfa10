"""Seconds on a processor are those of this machine as it is now, or the plan says that they are not."""

import sys
from pathlib import Path

import pytest

from containers.contracts.hardware import GpuProfile
from containers.contracts.names import StageName
from tasks.plan.figures import Figure, duration_text
from tasks.plan.inputs import cpu_speed as plan_speed
from tasks.plan.inputs.cpu_speed import NOT_MEASURED, REFERENCE_GFLOPS, CpuSpeed, measured_cpu_speed
from tasks.plan.run_plan import RunPlan, plan_run
from tasks.plan.text import figure_text, render_plan
from tests.unit.factories.plan_runs import pair, run_on, stage_of

PAIRS = [pair(100, 20, 30)] * 150


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    plan_speed._measured.cache_clear()


def time_of(plan: RunPlan, stage: StageName) -> Figure:
    time = stage_of(plan, stage).time
    assert time is not None
    return time


def seconds_of(plan: RunPlan, stage: StageName) -> float:
    seconds = time_of(plan, stage).value
    assert seconds is not None
    return seconds


def test_a_machine_of_half_the_speed_takes_twice_as_long(tmp_path: Path) -> None:
    loaded = run_on(tmp_path, PAIRS)
    same = plan_run(loaded, cpu=CpuSpeed(gflops=REFERENCE_GFLOPS))
    half = plan_run(loaded, cpu=CpuSpeed(gflops=REFERENCE_GFLOPS / 2))
    for stage in (StageName.FILTER_DATASET, StageName.TRAIN_POLICY, StageName.WRITE_REPORT):
        assert seconds_of(half, stage) == pytest.approx(2 * seconds_of(same, stage))
    assert half.operations == same.operations


def test_threads_of_a_rank_count_as_one_machine_and_more_threads_than_cores_crowd_it() -> None:
    assert CpuSpeed(gflops=2 * REFERENCE_GFLOPS, num_threads=2).slowness == 1
    assert CpuSpeed(gflops=REFERENCE_GFLOPS, crowding=3).slowness == 3


def test_the_plan_says_what_was_measured_and_what_it_was_multiplied_by(tmp_path: Path) -> None:
    slow = CpuSpeed(gflops=REFERENCE_GFLOPS / 2, share=0.25)
    plan = plan_run(run_on(tmp_path, PAIRS), cpu=slow)
    text = render_plan(plan)
    assert (
        f"  - time: 1 thread(s) multiply matrices at {REFERENCE_GFLOPS / 2:.0f} GFLOP/s here, and at "
        f"{REFERENCE_GFLOPS:.0f} on the machine that seconds were measured on; other work leaves them 25% of the "
        f"processor just now: 8 times these seconds, and 2 times where nothing else works\n"
    ) in text
    alone = duration_text(plan.seconds / 4)
    assert f"(estimated; {alone} where nothing else works on this machine)" in text
    assert "where nothing else works on this machine" not in render_plan(plan_run(run_on(tmp_path, PAIRS)))


def test_a_speed_that_nobody_measured_is_said_to_be_an_idle_machines(tmp_path: Path) -> None:
    text = render_plan(plan_run(run_on(tmp_path, PAIRS)))
    assert "  - time: seconds on a processor are those of an idle machine" in text
    assert "on an idle machine" in figure_text(time_of(plan_run(run_on(tmp_path, PAIRS)), StageName.TRAIN_POLICY))
    assert "not measured on this machine, and other work beside it can make them 4 times as many" in text


def test_this_machine_is_measured_once_for_each_number_of_threads() -> None:
    profile = GpuProfile(name="cpu", num_gpus=0, num_threads=1, precision="float32")
    found = measured_cpu_speed(profile)
    assert found.gflops is not None and found.gflops > 0.1
    assert 0 < found.share <= 1
    assert measured_cpu_speed(profile) is found
    many = measured_cpu_speed(profile.model_copy(update={"num_processes": 10_000}))
    assert many.crowding > 10


def test_a_machine_with_gpus_is_not_judged_by_the_processor_beside_them() -> None:
    assert measured_cpu_speed(GpuProfile(name="one", num_gpus=1, num_processes=1)) is NOT_MEASURED


def test_a_measurement_that_fails_leaves_the_assumption(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profile = GpuProfile(name="cpu", num_gpus=0, precision="float32")
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    assert measured_cpu_speed(profile) is NOT_MEASURED
    for said in ("nan 1 1", "0 1 1", "1 1 0", "1 1", "many words here", ""):
        plan_speed._measured.cache_clear()
        program.write_text(f"#!/bin/sh\necho {said}\n")
        program.chmod(0o755)
        assert measured_cpu_speed(profile) is NOT_MEASURED
