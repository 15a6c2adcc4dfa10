"""A finished run: what a change of the sources, and a model made again to the same weights, cost it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from faults.tiny_project import WITH_SFT, TinyProject

from containers.contracts.names import StageName

pytestmark = [pytest.mark.slow, pytest.mark.stages]

# Prompts and completions to learn are those of the pairs; train_policy trains the policy; no standard set is answered.
NOT_MADE = (
    StageName.CHECK_SYSTEM,
    StageName.FILTER_PROMPTS,
    StageName.FILTER_DEMONSTRATIONS,
    StageName.COMPUTE_REFERENCE,
    StageName.TRAIN_DPO,
    StageName.ANSWER_SETS,
    StageName.EVALUATE_SETS,
    StageName.COMPARE_POLICIES,
    StageName.WRITE_REPORT,
)
MADE = [stage.value for stage in StageName if stage not in NOT_MADE]
# No daemon answers, whatever this machine has, and rich does not wrap.
ENVIRONMENT = {"DOCKER_HOST": "unix:///nonexistent.sock", "COLUMNS": "400"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, project: Path) -> TinyProject:
    """A tiny run that came to its end, made by sources of its own that a test may change."""
    tiny = TinyProject.make(tmp_path_factory.mktemp("again") / "project", project)
    for package in ("flows", "tasks", "containers"):
        shutil.copytree(project / package, tiny.folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    run(tiny)
    return tiny


def run(tiny: TinyProject) -> str:
    """What the run says, which comes to its end."""
    driven = tiny.rlhf(WITH_SFT, environment=ENVIRONMENT)
    assert driven.wait() == 0, driven.text[-4000:]
    return driven.text


def planned(tiny: TinyProject) -> dict[str, str]:
    """Stage → what the plan says of it."""
    command = [sys.executable, "-m", "flows.cli.main", "plan", "-c", "configs/runs/tiny.yaml", "--set", WITH_SFT]
    done = subprocess.run(
        command, cwd=tiny.folder, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return dict(re.findall(r"^\d+\. (\w+) +\[(.*)\]$", done.stdout, re.MULTILINE))


def test_every_stage_loaded_what_its_key_knows_and_nothing_else(finished: TinyProject) -> None:
    for stage in (*MADE, "write_report"):
        manifest = json.loads((finished.artifact(StageName(stage)) / "MANIFEST.json").read_bytes())
        assert manifest["unlisted"] == [], stage


def planned_with(tiny: TinyProject, source: str, *, line: str) -> dict[str, str]:
    """What the plan says while that source has one more line."""
    path = tiny.folder / "containers" / source
    before = path.read_text(encoding="utf-8")
    path.write_text(f"{before}\n{line}\n", encoding="utf-8")
    try:
        return planned(tiny)
    finally:
        path.write_text(before, encoding="utf-8")


def test_a_change_of_the_reports_style_runs_the_report_alone(finished: TinyProject) -> None:
    found = planned_with(finished, "document/templates/style.css.jinja", line="/* wider */")
    assert [stage for stage in MADE if not found[stage].startswith("reused")] == []
    assert found["write_report"] == "runs"


def test_a_change_of_the_training_loop_is_told_with_its_file(finished: TinyProject) -> None:
    found = planned_with(finished, "training/loop.py", line="# faster")
    assert found["train_sft"] == "runs: containers/training/loop.py changed"
    assert [found[stage].partition(",")[0] for stage in MADE[:2]] == ["reused", "reused"]


def test_a_model_made_again_to_the_same_weights_leaves_everything_behind_it(finished: TinyProject) -> None:
    shutil.rmtree(finished.folder / "outputs/store/artifacts/train_sft")
    shutil.rmtree(finished.folder / "outputs/store/work/train_sft", ignore_errors=True)
    assert planned(finished)["train_reward_model"] == "runs, unless train_sft makes the same as before"
    said = run(finished)
    signs = dict(reversed(line.split()[:2]) for line in said.splitlines() if line[:2] in ("✔ ", "↺ "))
    assert signs["train_sft"] == "✔"
    assert [stage for stage in MADE if signs[stage] != "↺"] == ["train_sft"]
