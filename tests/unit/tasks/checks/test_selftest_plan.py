"""A measured step is held against the plan's figure for the same tokens, and gives the speed that plans then use."""

from pathlib import Path

import pytest

from containers.contracts.configs.selftest import Measured, Measurement, ProbeResult
from containers.contracts.hardware import GIB
from containers.contracts.names import StageName
from tasks.checks.selftest.judging import judged
from tasks.checks.selftest.planned import Subject, beside_plan, subject_of
from tasks.checks.selftest.problems import Facts
from tasks.checks.selftest.run import speed_of
from tasks.config.loading import load_run_config
from tasks.plan.inputs.gpu_speed import card_named
from tasks.plan.run_plan import draft_plan

RUN = "configs/runs/helpsteer3-qwen3-8b.yaml"
CARD = "NVIDIA H100 80GB HBM3"
SECONDS = Measurement(name="engine_token", value=0.0144, unit="s")
START = Measurement(name="start", value=70.0, unit="s", of="vllm")


@pytest.fixture
def subject(project: Path) -> Subject:
    overrides = ["train_policy.rollout_engine=vllm", f"gpu_profile.card={CARD}"]
    return subject_of(load_run_config(project / RUN, overrides=overrides, profile="1x80gb").config)


def step(probe: str, tokens: int, **figures: float) -> Measured:
    named = {"largest_pack": tokens, **figures}
    return Measured(
        probe=probe, values=tuple(Measurement(name=name, value=value, unit="") for name, value in named.items())
    )


def test_the_runs_own_shape_is_measured_with_a_rule_as_reward_and_an_engine_without_files(subject: Subject) -> None:
    assert subject.is_of_the_run and subject.shape is not None
    assert (subject.shape.shape.num_hidden_layers, subject.shape.shape.hidden_size) == (36, 4096)
    assert subject.policy is not None
    assert subject.policy.rollout_engine == "shared_prompts"
    assert [term.type for term in subject.policy.rewards] == ["regex"]
    assert subject.rollouts is not None and subject.rollouts.rollout_engine == "vllm", "the engine's probe writes files"


def test_ppo_writes_by_the_runs_engine_without_its_critic(project: Path) -> None:
    """The critic starts from a reward model that is not there; what writes is the same policy."""
    ppo = subject_of(load_run_config(project / "configs/runs/ppo-hh-rlhf.yaml").config)
    assert ppo.policy is not None and ppo.policy.has_critic, "the step is refused with the reason"
    assert ppo.rollouts is not None and not ppo.rollouts.has_critic
    assert (ppo.rollouts.rollout_engine, ppo.rollouts.num_generations) == ("vllm", 1)


def test_the_plan_for_the_measured_tokens_is_that_of_the_run(subject: Subject) -> None:
    profile = subject.run.gpu_profile
    plan = next(one for one in draft_plan(subject.run).stages if one.stage is StageName.TRAIN_REWARD_MODEL)
    tokens = next(figure.value for figure in plan.figures if figure.name == "computed at a time")
    held = sum(part.value or 0 for part in plan.memory if part.name != "CUDA context")
    found = beside_plan(step("reward_step", int(tokens or 0), step_of_a_rank=1000.0), subject, profile)
    assert found.one("planned") == pytest.approx(held)
    more = beside_plan(step("reward_step", 2 * int(tokens or 0), step_of_a_rank=2000.0), subject, profile)
    assert (more.one("planned") or 0) > held + GIB, "activations grow with the tokens"
    # 4 operations a weight and token for adapters, and 2 to compute the forward again; 6.95e9 weights in the blocks.
    assert more.one("work") == pytest.approx(6 * 6.95e9 * 2000, rel=0.01)


def test_a_policys_step_is_planned_without_a_reward_model_and_says_what_a_token_launches(subject: Subject) -> None:
    profile = subject.run.gpu_profile
    found = beside_plan(step("policy_step", 8192), subject, profile)
    planned = next(one for one in draft_plan(subject.run).stages if one.stage is StageName.TRAIN_POLICY)
    assert GIB < (found.one("planned") or 0) < sum(part.value or 0 for part in planned.memory)
    assert (found.one("layers"), found.one("launches")) == (36, 2.4)


def test_a_peak_is_judged_by_that_plan_and_the_speed_is_of_its_work(subject: Subject) -> None:
    profile = subject.run.gpu_profile
    facts = Facts(profile, card_named(CARD))
    reward = beside_plan(step("reward_step", 16_000, step_of_a_rank=16_000.0, step=1.5, peak=1.0), subject, profile)
    heavy = beside_plan(step("reward_step", 16_000, step_of_a_rank=16_000.0, step=1.5, peak=90 * GIB), subject, profile)
    policy = beside_plan(step("policy_step", 8192, generated_token=0.0432, peak=1.0), subject, profile)
    assert judged(heavy, facts).verdict == "failed"
    memory = Measured(
        probe="memory",
        values=tuple(Measurement(name="copy", value=value, unit="bytes/s", of="GPU") for value in (2.5e12, 3.0e12)),
    )
    rows: dict[str, ProbeResult] = {one.probe: judged(one, facts) for one in (reward, policy, memory)}
    speed = speed_of(rows, profile)
    assert speed is not None
    assert speed.flops == pytest.approx(6 * 6.95e9 * 16_000 / 1.5, rel=0.01)
    assert speed.memory_bytes_per_s == 2.5e12, "the slowest card"
    assert speed.block_token_s == pytest.approx(0.0432 / 36 / 2.4)
    assert speed.graph_token_s is None
    by_vllm = beside_plan(Measured(probe="rollouts", values=(SECONDS, START)), subject, profile)
    rows["rollouts"] = judged(by_vllm, facts)
    measured_too = speed_of(rows, profile)
    assert measured_too is not None and measured_too.graph_token_s == pytest.approx(0.0144 / 36)
    rows["rollouts"] = judged(by_vllm.model_copy(update={"error": "it never started"}), facts)
    assert speed_of(rows, profile) == speed
    rows["reward_step"] = judged(heavy, facts)
    assert speed_of(rows, profile) is None, "no plan is made of a step that failed"


def test_a_processor_measures_a_small_model_and_says_so(project: Path) -> None:
    small = subject_of(load_run_config(project / RUN, profile="cpu").config)
    assert small.shape is not None and small.shape.shape.num_hidden_layers == 2
    assert "too large for a processor" in small.note
    assert small.reward.max_length == 64
    measured = step("reward_step", 512, step_of_a_rank=512.0)
    assert beside_plan(measured, small, small.run.gpu_profile) is measured


def test_a_shape_that_is_not_known_is_said_on_gpus_and_replaced_on_a_processor(project: Path) -> None:
    unknown = ["base_model={hub_id: nowhere/model-x, revision: main}"]
    on_gpu = subject_of(load_run_config(project / RUN, overrides=unknown, profile="1x80gb").config)
    assert on_gpu.shape is None and "rlhf fetch" in on_gpu.note
    on_cpu = subject_of(load_run_config(project / RUN, overrides=unknown, profile="cpu").config)
    assert on_cpu.shape is not None and "is not known here" in on_cpu.note
