"""`rlhf score` as people call it: a real process that starts a real program, for models of every kind."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.factories.adapter_factory import make_adapter
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

ROWS = [
    {"prompt": "Name a colour.", "chosen": "Red.", "rejected": "Who cares?"},
    {"prompt": "Name a colour.", "chosen": "", "rejected": "Who cares?"},
    {"prompt": "Name an animal.", "chosen": "A cat.", "rejected": "No."},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_reward_model(tmp_path_factory.mktemp("model"))


def _rlhf_score(folder: Path, project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a folder of its own: no run, no server, no configuration is there."""
    return subprocess.run(
        [sys.executable, "-m", "flows.cli.main", "score", "--runtime", "process", *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def _rows(folder: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows or ROWS))
    return path


def test_the_scores_of_a_file_lie_where_they_were_asked_for_and_nothing_else_is_left(
    tmp_path: Path, project: Path, model: Path
) -> None:
    _rows(tmp_path)
    ran = _rlhf_score(tmp_path, project, "-m", str(model), "rows.jsonl")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [(line["row"], line.get("not_scored")) for line in lines] == [(1, None), (2, "empty_response"), (3, None)]
    assert lines[0]["margin"] == lines[0]["score_chosen"] - lines[0]["score_rejected"]
    assert "2 scored, 1 not (empty_response 1)" in ran.stdout
    assert "n = 2)" in ran.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl", "scores.jsonl"]


def test_standard_output_gets_the_scores_and_nothing_else_and_an_adapter_scores_as_its_merged_copy(
    tmp_path: Path, project: Path
) -> None:
    made = make_adapter(tmp_path / "made", base_model="elsewhere")
    rows = _rows(tmp_path)
    margins = []
    for options in (("-m", str(made.folder), "--base", str(made.base)), ("-m", str(made.merged))):
        ran = _rlhf_score(tmp_path, project, *options, str(rows), "--out", "-", "--batch-tokens", "64")
        assert ran.returncode == 0, ran.stderr
        lines = [json.loads(line) for line in ran.stdout.splitlines()]
        assert len(lines) == 3
        assert "Accuracy" in ran.stderr
        margins.append([line["margin"] for line in lines if "margin" in line])
    assert margins[0] == pytest.approx(margins[1], abs=1e-4)


def test_a_model_without_a_score_head_ends_with_1_the_reason_and_a_log(tmp_path: Path, project: Path) -> None:
    rows = _rows(tmp_path)
    causal = save_causal_model(tmp_path / "causal")
    ran = _rlhf_score(tmp_path, project, "-m", str(causal), str(rows))
    assert ran.returncode == 1
    assert "score_file failed (missing_prerequisite)" in ran.stdout
    assert "score.weight is not in its files and would be made at random" in ran.stdout
    log = Path(ran.stdout.rpartition("Full log: ")[2].strip())
    assert "score.weight" in (tmp_path / log).read_text()
    assert not (tmp_path / "scores.jsonl").exists()


def test_an_adapter_whose_base_model_is_gone_ends_with_2_before_anything_starts(tmp_path: Path, project: Path) -> None:
    made = make_adapter(tmp_path / "made", base_model="/gone/with/the/machine")
    ran = _rlhf_score(tmp_path, project, "-m", str(made.folder), str(_rows(tmp_path)))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "base model of the adapter" in ran.stderr
    assert "--base FOLDER" in ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "rows.jsonl"]
