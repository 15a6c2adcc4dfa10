"""A stranger's clone has no real data: its tests skip what needs it and say so, and the mark finds just those tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Parameters that name the data, tests that take the fixture, and tests that need neither.
FILES = ("tests/unit/tasks/config/test_debug_run.py", "tests/unit/tasks/config/test_shipped_configs.py")


def run_pytest(project: Path, *arguments: str, data: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments, *FILES]
    environment = {**os.environ, "RLHF_SHARED_DATA": str(data)}
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False
    ).stdout


@pytest.mark.waits
def test_without_the_data_every_test_that_needs_it_is_skipped_aloud(project: Path, tmp_path: Path) -> None:
    said = run_pytest(project, "-q", data=tmp_path / "nowhere")
    assert "failed" not in said and "error" not in said, said
    assert f"REAL DATA ABSENT: {tmp_path}/nowhere is not there, so nothing was tested on it" in said
    assert "15 skipped" in said, said


@pytest.mark.waits
def test_the_mark_finds_every_test_that_needs_the_data_and_no_other(project: Path, tmp_path: Path) -> None:
    said = run_pytest(project, "--collect-only", "-q", "-m", "shared_data", data=tmp_path / "nowhere")
    found = sorted(line.rpartition("::")[2] for line in said.splitlines() if "::" in line)
    assert found == [
        f"test_{what}[{run}]"
        for what in (
            "a_run_on_real_data_names_files_that_exist",
            "every_shipped_run_becomes_a_debug_run_that_can_be_planned",
            "with_full_shapes_a_step_of_every_shipped_run_is_the_real_one",
        )
        for run in ("dpo-hh", "ppo-hh", "real-hh", "real-small", "sft-hh")
    ]
