"""What vLLM takes of the GPUs is planned, and what it could not start with is refused before one is taken."""

from pathlib import Path

import pytest

from containers.contracts.hardware import GIB, BatchPlan, GpuProfile
from containers.contracts.names import StageName
from tasks.config.loading import load_run_config
from tasks.plan import estimates
from tasks.plan import policy as plan_policy
from tasks.plan.estimates import TrainingLoad, Work
from tasks.plan.figures import PlanContext
from tasks.plan.limits import memory_bytes
from tasks.plan.run_plan import draft_plan, plan_run
from tasks.plan.text import figure_text
from tests.unit.factories.plan_runs import figure_of, pair, run_by_ranks, run_on, stage_of

PRODUCTION = Path("configs/runs/helpsteer3-qwen3-8b.yaml")
POLICY = StageName.TRAIN_POLICY


@pytest.fixture(autouse=True)
def in_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


@pytest.mark.parametrize("sleeps", [True, False])
def test_vllm_takes_its_share_of_a_gpu_and_the_activations_when_it_sleeps(sleeps: bool) -> None:
    chosen = ("rollout_engine=vllm", "vllm_memory_fraction=0.4", f"vllm_sleeps={str(sleeps).lower()}")
    loaded = run_by_ranks(PRODUCTION, profile="1x80gb", overrides=[f"train_policy.{one}" for one in chosen])
    memory = stage_of(plan_run(loaded), POLICY).memory
    figures = {figure.name: figure.value or 0.0 for figure in memory}
    own = figures["vLLM, model and cache" + (", beyond the activations" if sleeps else "")]
    share = own + (figures["activations"] if sleeps else 0)
    assert share == pytest.approx(0.4 * loaded.config.gpu_profile.gpu_memory_gib * GIB)
    assert "generation cache" not in figures


def test_all_weights_reach_vllm_through_files_which_takes_time() -> None:
    chosen = ("lora=null", "distribution=fsdp", "rollout_engine=vllm", "optimizer.offload=true")

    def seconds(*more: str) -> float:
        overrides = [f"train_policy.{one}" for one in (*chosen, *more)]
        stage = stage_of(plan_run(run_by_ranks(PRODUCTION, profile="8x80gb", overrides=overrides)), POLICY)
        assert stage.time is not None and stage.time.value is not None
        return stage.time.value

    assert seconds() > 100 * 16.38, "16.38 GB in each of 100 steps, at an assumed 1 GB/s"
    assert seconds("schedule.max_steps=50") < 100 * 16.38


def test_gpus_of_vllms_own_have_no_rank_and_take_nothing_of_the_others() -> None:
    alone = ("train_policy.rollout_engine=vllm", "train_policy.vllm_gpus=2", "train_policy.global_batch_size=96")
    plan = plan_run(run_by_ranks(PRODUCTION, profile="8x80gb", overrides=alone))
    stage = stage_of(plan, POLICY)
    assert stage.batch is not None and stage.batch.num_processes == 6
    assert not {"vLLM, model and cache", "generation cache"} & {figure.name for figure in stage.memory}
    assert figure_text(figure_of(plan, POLICY, "for vLLM alone")) == "2 GPUs (exact)"
    reward_model = stage_of(plan, StageName.TRAIN_REWARD_MODEL).batch
    assert reward_model is not None and reward_model.num_processes == 8


def test_the_shipped_runs_write_by_vllm_and_fit_the_profiles_that_they_name(project: Path) -> None:
    for profile in ("7x48gb", "4x48gb", "1x48gb", "1x80gb", "1x141gb", "8x48gb", "8x80gb", "8x141gb"):
        plan = plan_run(load_run_config(project / PRODUCTION, profile=profile))
        policy = stage_of(plan, POLICY)
        assert memory_bytes(policy) < 0.95 * plan.profile.gpu_memory_gib * GIB, profile
        assert any("vLLM" in part.name for part in policy.memory)
        of_ranks = stage_of(plan_run(run_by_ranks(project / PRODUCTION, profile=profile)), POLICY)
        assert policy.time is not None and of_ranks.time is not None
        assert (policy.time.value or 0) < 0.7 * (of_ranks.time.value or 0), profile


@pytest.mark.parametrize(
    ("settings", "programs"),
    [
        (("global_batch_size=96",), "8 program(s)"),
        (("global_batch_size=96", "rollout_engine=vllm", "vllm_sleeps=false"), "8 program(s) and 8 of vLLM"),
        (("global_batch_size=56", "rollout_engine=vllm", "vllm_gpus=1"), "7 program(s) and 1 of vLLM"),
        (("global_batch_size=96", "rollout_engine=vllm", "vllm_gpus=2"), "6 program(s) and 3 of vLLM"),
    ],
)
def test_vllms_own_programs_take_host_memory(settings: tuple[str, ...], programs: str) -> None:
    loaded = run_by_ranks(PRODUCTION, profile="8x80gb", overrides=[f"train_policy.{one}" for one in settings])
    found = stage_of(plan_run(loaded), POLICY).host_memory
    assert found is not None
    assert found.note == f"{programs}, the weights' files, which all share, and a copy to save"


def test_a_vllm_that_sleeps_keeps_its_weights_in_host_memory_on_each_rank() -> None:
    def host(sleeps: str) -> float:
        overrides = ["train_policy.rollout_engine=vllm", f"train_policy.vllm_sleeps={sleeps}"]
        found = stage_of(plan_run(run_by_ranks(PRODUCTION, profile="8x80gb", overrides=overrides)), POLICY)
        assert found.host_memory is not None and found.host_memory.value is not None
        return found.host_memory.value

    assert host("true") - host("false") == 8 * 2 * 8_190_735_360


def test_without_a_gpu_vllm_holds_the_weights_and_room_for_all_it_writes_beside_each_rank(tmp_path: Path) -> None:
    policy = {"lora": {"r": 8}, "max_completion_length": 200}
    runs = (
        run_on(tmp_path, [pair(5, 5, 5)] * 150, train_policy={**policy, "rollout_engine": engine})
        for engine in ("shared_prompts", "vllm")
    )
    without, beside = (stage_of(plan_run(loaded), POLICY) for loaded in runs)
    parts = {figure.name: figure.value or 0 for figure in beside.memory}
    weights = parts["frozen weights"]
    # Room for its completions is a fraction of a GiB.
    assert parts["vLLM, model and cache"] == weights + GIB
    assert without.host_memory is not None and beside.host_memory is not None
    more = (beside.host_memory.value or 0) - (without.host_memory.value or 0)
    cache = next(figure.value or 0 for figure in without.memory if figure.name == "generation cache")
    assert more == weights + GIB - cache + estimates.program_bytes(
        GpuProfile(name="cpu", num_gpus=0, precision="float32")
    )


def test_one_vllm_reads_all_weights_once_for_a_token_of_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: list[float] = []
    original = plan_policy._generation

    def generation(context: PlanContext, load: TrainingLoad, batch: BatchPlan) -> Work:
        seconds.append(original(context, load, batch).seconds)
        return original(context, load, batch)

    monkeypatch.setattr(plan_policy, "_generation", generation)
    beside = ("train_policy.rollout_engine=vllm", "train_policy.global_batch_size=96")
    for overrides in (beside, (*beside, "train_policy.vllm_gpus=2")):
        plan_run(run_by_ranks(PRODUCTION, profile="8x80gb", overrides=overrides))
    # Two GPUs read half of them each; the prompts of all ranks come on top.
    assert seconds[1] == pytest.approx(seconds[0] / 2, rel=0.2)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            ("vllm_gpus=3", "global_batch_size=80"),
            "train_policy.vllm_gpus: vLLM cannot divide 32 attention heads, 8 heads of keys, a vocabulary of 151,936 "
            "words of this model over 3 GPUs. Use 1 or 2 or 4.",
        ),
        (
            ("vllm_memory_fraction=0.15",),
            "train_policy.vllm_memory_fraction: vLLM has 12.0 GiB, 0.15 of a GPU that it shares with a rank (80 GiB "
            "each); the weights take 15.3 GiB, and one conversation of 1,536 tokens 216.0 MiB.",
        ),
        (
            ("vllm_memory_fraction=0.05", "vllm_gpus=2", "global_batch_size=96"),
            "train_policy.vllm_memory_fraction: vLLM has 8.0 GiB, 0.05 of 2 GPU(s) of its own",
        ),
    ],
)
def test_a_vllm_that_could_not_start_is_refused_beforehand(settings: tuple[str, ...], expected: str) -> None:
    overrides = ["train_policy.rollout_engine=vllm", *(f"train_policy.{setting}" for setting in settings)]
    plan = draft_plan(run_by_ranks(PRODUCTION, profile="8x80gb", overrides=overrides).config)
    assert any(str(mistake).startswith(expected) for mistake in plan.mistakes), plan.mistakes


def test_an_evaluation_by_vllm_takes_its_share_of_the_gpu_and_less_time_for_long_completions() -> None:
    shared = ("evaluate_policy.max_prompts=2000", "evaluate_policy.max_completion_length=1024")
    plans = [
        stage_of(
            plan_run(run_by_ranks(PRODUCTION, profile="1x80gb", overrides=[*shared, *more])),
            StageName.SAMPLE_COMPLETIONS,
        )
        for more in ((), ("evaluate_policy.rollout_engine=vllm",))
    ]
    assert all(plan.time is not None and plan.time.value is not None for plan in plans)
    plain, by_vllm = (plan.time.value or 0.0 for plan in plans if plan.time is not None)
    assert by_vllm < plain / 3
    share = next(figure.value for figure in plans[1].memory if "vLLM" in figure.name)
    assert share == int(0.9 * 80 * GIB)
