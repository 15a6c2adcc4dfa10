"""`--debug` on the command line, and a chat template by its name: what a person types must reach the run."""

from pathlib import Path

import pytest
from fakes.warm_rlhf import WarmRlhf

from tasks.config.errors import InvalidConfigError
from tasks.config.loading import load_run_config
from tests.unit.factories.plan_runs import BY_RANKS
from tests.unit.factories.run_files import write_run


@pytest.mark.waits
def test_the_plan_of_a_debug_run_shows_that_it_is_one(project: Path, warm_rlhf: WarmRlhf) -> None:
    ran = warm_rlhf("plan", "-c", "configs/runs/helpsteer3-qwen3-8b.yaml", "--debug", cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert "Plan of helpsteer3-qwen3-8b-debug" in ran.stdout
    assert "2 steps (exact)" in ran.stdout


def test_a_debug_run_says_at_its_start_what_it_is(project: Path, tmp_path: Path, warm_rlhf: WarmRlhf) -> None:
    """Its data is not there, so it goes no further."""
    ran = warm_rlhf("run", "-c", str(write_run(tmp_path)), "--debug", cwd=tmp_path)
    assert ran.returncode != 0
    assert ran.stdout.startswith("Debug run small-debug: 2 steps of each training")


@pytest.mark.waits
def test_full_shapes_are_an_option_of_their_own_so_that_a_step_may_follow(tmp_path: Path, warm_rlhf: WarmRlhf) -> None:
    ran = warm_rlhf("run", "-c", str(write_run(tmp_path)), "--debug-full", cwd=tmp_path)
    assert ran.stdout.startswith("Debug run small-debug-full at full shapes: 2 steps of each training")
    step = warm_rlhf("step", "-c", str(write_run(tmp_path)), "--debug", "40", cwd=tmp_path)
    assert "invalid" not in step.stderr and "--debug" not in step.stderr


@pytest.mark.waits
def test_commands_that_move_a_champion_know_no_debug(project: Path, warm_rlhf: WarmRlhf) -> None:
    for command in ("retrain", "promote", "approve"):
        assert "--debug" not in warm_rlhf(command, "--help", cwd=project).stdout


def test_a_shipped_template_by_its_name_becomes_its_text(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    path = write_run(tmp_path, train_reward_model={"chat_template": "plain", "lora": {"r": 8}})
    loaded = load_run_config(path)
    text = (project / "configs" / "chat_templates" / "plain.jinja").read_text()
    assert loaded.config.train_reward_model.chat_template == text
    again = tmp_path / "again.yaml"
    again.write_text(loaded.yaml_text)
    assert load_run_config(again).config == loaded.config


def test_an_unknown_template_is_told_with_the_override_that_named_it(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    with pytest.raises(InvalidConfigError) as caught:
        load_run_config(write_run(tmp_path), overrides=["train_reward_model.chat_template=chatlm"])
    assert [str(mistake) for mistake in caught.value.mistakes] == [
        "train_reward_model.chat_template: `chatlm`: no such template, and no .jinja file. Did you mean `chatml`? "
        "(from --set train_reward_model.chat_template=chatlm)"
    ]


def test_the_plan_of_a_head_trained_alone_reckons_with_frozen_weights(project: Path, warm_rlhf: WarmRlhf) -> None:
    head = ("train_reward_model.trainable=head", "train_reward_model.lora=null", *BY_RANKS)
    settings = [part for setting in head for part in ("--set", setting)]
    ran = warm_rlhf("plan", "-c", "configs/runs/helpsteer3-qwen3-8b.yaml", *settings, cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert "trained parameters 4.1K = 4,096 (exact; 0.00%)" in " ".join(ran.stdout.split())
