"""`--profile auto` on a machine, seen from the command line: one profile, its reason in the plan, or a refusal."""

from pathlib import Path

import pytest

from tasks.config.errors import ConfigError
from tasks.config.loading import config_files, load_run_config
from tasks.config.profiles import profile_of_ladder
from tasks.plan.run_plan import draft_plan
from tasks.plan.text import render_plan

PRODUCTION = "configs/runs/helpsteer3-qwen3-8b.yaml"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, project: Path, smi: pytest.MonkeyPatch) -> None:
    smi.setenv("RLHF_GPU_LEASES", str(tmp_path / "leases"))
    smi.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    smi.delenv("PREFECT__FLOW_RUN_ID", raising=False)
    smi.chdir(project)


def test_the_plan_says_which_profile_was_taken_and_why(smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", " ".join(["49140"] * 6))
    loaded = load_run_config(PRODUCTION, profile="auto")
    assert loaded.config.gpu_profile.name == "4x48gb"
    text = render_plan(draft_plan(loaded.config))
    assert "profile   4x48gb: 4 GPU(s) of 48 GiB" in text
    assert "chosen    auto: 6 GPU(s) (0, 1, 2, 3, 4, 5: NVIDIA card) are free; 4x48gb takes 4" in text
    assert "7x48gb not: 6 of 7 GPUs with 48 GiB" in text
    assert "chosen_because: 'auto: 6 GPU(s)" in loaded.yaml_text, "the effective configuration repeats this very run"


@pytest.mark.parametrize(("size", "chosen"), [(112, "7x48gb"), (96, "4x48gb"), (15, "1x48gb")])
def test_the_global_batch_of_the_run_decides_with_the_cards(smi: pytest.MonkeyPatch, size: int, chosen: str) -> None:
    smi.setenv("FAKE_SMI", " ".join(["49140"] * 7))
    batch = [f"train_reward_model.global_batch_size={size}", "train_policy.global_batch_size=112"]
    loaded = load_run_config(PRODUCTION, profile="auto", overrides=batch)
    assert loaded.config.gpu_profile.name == chosen
    assert loaded.config.train_reward_model.global_batch_size == size
    if chosen != "7x48gb":
        assert f"7x48gb not: train_reward_model: global_batch_size {size} cannot be divided" in (
            loaded.config.gpu_profile.chosen_because
        )


@pytest.mark.parametrize(
    ("settings", "chosen", "reason"),
    [
        ([], "4x48gb", "7x48gb not: train_policy: global_batch_size 112 cannot be divided over 5 ranks"),
        (["train_policy.global_batch_size=60"], "7x48gb", "7x48gb takes 7"),
        (["train_policy.global_batch_size=24"], "4x48gb", "24 cannot be divided over 5 ranks in groups of 4"),
    ],
)
def test_gpus_that_vllm_has_to_itself_count_when_a_profile_is_chosen(
    smi: pytest.MonkeyPatch, settings: list[str], chosen: str, reason: str
) -> None:
    smi.setenv("FAKE_SMI", " ".join(["49140"] * 7))
    vllm = ["train_policy.rollout_engine=vllm", "train_policy.vllm_gpus=2", "train_policy.num_generations=4"]
    loaded = load_run_config(PRODUCTION, profile="auto", overrides=[*vllm, *settings])
    assert loaded.config.gpu_profile.name == chosen
    assert reason in loaded.config.gpu_profile.chosen_because


def test_a_key_of_the_chosen_profile_can_still_be_set(smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", "49140")
    loaded = load_run_config(PRODUCTION, profile="auto", overrides=["gpu_profile.shm_size_gib=3"])
    assert (loaded.config.gpu_profile.name, loaded.config.gpu_profile.shm_size_gib) == ("1x48gb", 3)


def test_a_machine_without_gpu_plans_for_the_cpu_and_says_so(smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", "none")
    loaded = load_run_config("configs/runs/demo.yaml", profile="auto")
    assert loaded.config.gpu_profile.name == "cpu"
    assert loaded.config.gpu_profile.chosen_because.startswith(
        "auto: the driver reports no devices, so no GPU is used; "
    )


def test_a_broken_driver_is_a_mistake_of_the_configuration(smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", "mismatch")
    with pytest.raises(ConfigError, match="gpu_profile: The GPUs of this machine cannot be read"):
        load_run_config(PRODUCTION, profile="auto")


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({"ladder": ["7x48bg"], "without_gpu": "cpu"}, "its ladder names `7x48bg`: no such profile. .*7x48gb"),
        ({"ladder": [], "without_gpu": "cpu"}, "ladder"),
        ({"ladder": ["cpu"]}, "without_gpu"),
        ({"ladder": ["auto"], "without_gpu": "cpu"}, "auto"),
        ({"ladder": ["cpu"], "without_gpu": "cpu", "fallbacks": []}, "fallbacks"),
    ],
)
def test_a_ladder_with_a_mistake_says_which(tree: dict[str, object], reason: str) -> None:
    files = {path.stem: path for path in config_files("gpu_profiles")}
    with pytest.raises(ConfigError, match=reason):
        profile_of_ladder(tree, files, run={})
