"""The table at the end of a plan: each stage at a glance, and what is there already costs nothing."""

from collections import namedtuple
from pathlib import Path

import pytest

from containers.contracts.names import StageName
from tasks.config.loading import load_run_config
from tasks.plan import run_plan as plan_module
from tasks.plan.run_plan import plan_run
from tasks.plan.text import render_plan, table_lines
from tests.unit.factories.plan_runs import pair, run_on, stage_of

PRODUCTION = Path("configs/runs/helpsteer3-qwen3-8b.yaml")
Usage = namedtuple("Usage", "total used free")


def cells(lines: list[str]) -> dict[str, list[str]]:
    return {line.split()[0]: line.split("  ") for line in lines}


def test_every_stage_has_a_line_with_steps_tokens_work_memory_disk_and_time(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    plan = plan_run(load_run_config(PRODUCTION))
    *lines, legend = table_lines(plan)
    assert lines[0].split() == ["stage", "result", "steps", "tokens", "work", "memory", "disk", "time"]
    assert [line.split()[0] for line in lines[1:]] == [stage.stage.value for stage in plan.stages]
    row = next(line for line in lines if line.startswith("train_reward_model"))
    assert " ".join(row.split()) == "train_reward_model runs 180 41.3 M 1.9 EFLOP 22.9 GiB 24.7 GiB 32 min"
    assert legend.startswith("All but `result` is estimated")
    text = render_plan(plan)
    assert f"{plan.operations / 1e18:.1f} EFLOP (estimated)" in text
    assert "Assumptions:" in text and "  - work (FLOP): 2 a weight and token forward" in text


def test_what_is_reused_is_in_no_sum(tmp_path: Path) -> None:
    loaded = run_on(tmp_path, [pair(100, 20, 30)] * 150)
    whole = plan_run(loaded)
    part = plan_run(loaded, artifacts={StageName.TRAIN_REWARD_MODEL: tmp_path})
    left_out = stage_of(whole, StageName.TRAIN_REWARD_MODEL)
    assert left_out.disk and left_out.time and left_out.work
    assert part.disk_bytes == pytest.approx(whole.disk_bytes - (left_out.disk.value or 0))
    assert part.seconds == pytest.approx(whole.seconds - (left_out.time.value or 0))
    assert part.operations == pytest.approx(whole.operations - (left_out.work.value or 0))
    row = next(line for line in table_lines(part) if line.startswith("train_reward_model"))
    assert row.split() == ["train_reward_model", "reused", *["-"] * 6]
    assert "What is reused costs nothing again and is not in these sums." in render_plan(part)


def test_a_full_disk_is_a_warning_that_names_folder_need_and_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "not" / "yet" / "there"
    run = {"name": "small", "store_dir": str(store)}
    loaded = run_on(tmp_path, [pair(100, 20, 30)] * 150, run=run)
    asked: list[Path] = []

    def usage(folder: Path) -> Usage:
        asked.append(folder)
        return Usage(2**30, 2**30 - 2**20, 2**20)

    assert plan_run(loaded).warnings == ()
    monkeypatch.setattr(plan_module.shutil, "disk_usage", usage)
    (warning,) = plan_run(loaded).warnings
    assert asked == [tmp_path]
    assert warning.startswith("run.store_dir: about ") and f"{store} has 1.00 MiB left." in warning
    assert "that are free for" in render_plan(plan_run(loaded))


def test_unknown_figures_are_question_marks(tmp_path: Path) -> None:
    loaded = run_on(tmp_path, [pair(100, 20, 30)] * 150, dataset={"hub_id": "org/x", "revision": "main", "train": "a"})
    lines = table_lines(plan_run(loaded))
    row = next(line for line in lines if line.startswith("train_reward_model"))
    assert row.split()[2:5] == ["?", "?", "?"]
