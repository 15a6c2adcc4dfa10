"""The clock of filter_speed watches every step that its page lists: a function that moved would be missing there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.filter_rows import SUITES, write_rows
from benchmarks.filter_speed import STEPS
from benchmarks.made_data import folder_of

pytestmark = pytest.mark.stages


def test_every_step_of_the_page_is_watched(project: Path, tmp_path: Path) -> None:
    rows, few, program = tmp_path / "rows.jsonl", tmp_path / "few.jsonl", str(project / "benchmarks/filter_run.py")
    with folder_of(None) as made:
        for path, count in ((rows, 800), (few, 600)):
            write_rows(path, made, num_rows=count)
        suites = [part for name, file in SUITES for part in ("--suite", f"{name}={made / file}")]
        ran = subprocess.run(
            [sys.executable, program, str(rows), str(few), *suites, "--steps", "--language"],
            env={**os.environ, "PYTHONPATH": str(project)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    assert {*json.loads(ran.stdout)["steps"]} >= {*STEPS}
