"""What a policy wrote is found while it trains and afterwards, and never taken from another run of the same store."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from flows.cli.main import main
from tasks.config.loading import load_run_config
from tasks.run.policy_steps import read_policy_steps
from tests.unit.factories.run_files import write_run

QUESTION = [{"role": "user", "content": "2 + 2?"}]


def row(step: int, completion: str, reward: float | None, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "prompt": QUESTION,
        "answer": "4",
        "completion": completion,
        "reward": reward,
        "advantage": 0.5,
        "num_tokens": 3,
        "ended": True,
        "no_value": None,
        "value_exact": reward,
        **more,
    }


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path)


def finish(folder: Path, rows: list[dict[str, Any]], *, at: float) -> None:
    place = folder / "outputs/small/artifacts/train_policy/completions.parquet"
    place.parent.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(rows), place)
    os.utime(place, (at, at))


def go_on(folder: Path, rows: list[dict[str, Any]], *, holder: str, at: float, key: str = "k") -> None:
    work = folder / "outputs/store/work/train_policy"
    place = work / key / "checkpoints/completions.jsonl"
    place.parent.mkdir(parents=True)
    # A line that is being written while someone looks.
    place.write_text("".join(json.dumps(one) + "\n" for one in rows) + '{"step": 9, "compl')
    (work / f"{key}.holder.json").write_text(json.dumps({"holder": f"{holder} 20260101-000000-abcdef"}))
    os.utime(place, (at, at))


def test_the_training_that_goes_on_comes_before_the_one_that_is_finished(tmp_path: Path, run_file: Path) -> None:
    config = load_run_config(run_file).config
    assert read_policy_steps(config) is None
    finish(tmp_path, [row(5, "4", 1.0)], at=1000)
    go_on(tmp_path, [row(1, "5", 0.0), row(1, "4", 1.0), row(2, "4", 1.0)], holder="small", at=2000)
    go_on(tmp_path, [row(7, "other", 0.0)], holder="smaller", at=3000, key="other")
    kept = read_policy_steps(config)
    assert kept is not None
    assert kept.steps == (1, 2)
    ((best, worse),) = kept.prompts_of(1)
    assert (best["completion"], worse["completion"]) == ("4", "5")
    assert (kept.nearest(40), kept.nearest(-3)) == (2, 1)


def test_the_command_shows_a_step_and_names_those_that_are_there(
    tmp_path: Path, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["step", "-c", str(run_file)]) == 1
    assert "No completions of small are kept yet" in capsys.readouterr().err
    odd = row(4, "\x1b[31mfour", None, ended=False, no_value="exact: took 2 s")
    finish(tmp_path, [row(2, "5", 0.0), row(4, "4", 1.0), odd], at=1000)
    assert main(["step", "-c", str(run_file), "3"]) == 1
    assert "Of step 3 nothing is kept. The nearest is 2; kept steps: 2, 4." in capsys.readouterr().err
    assert main(["step", "-c", str(run_file)]) == 0
    said = capsys.readouterr().out
    assert "Step 4: 2 completions of 1 prompt(s) are kept" in said
    assert "user: 2 + 2?" in said and "Reference answer: 4" in said
    for words in ("exact", "Advantage", "[cut off]", "took 2 s", "—"):
        assert words in said
    assert "\x1b[31m" not in said
