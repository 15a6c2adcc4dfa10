"""What the policy wrote at first, in the middle and at last; a file that is missing or damaged hides no report."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from containers.document.model import Samples
from containers.report.written import read_written, written_samples

ONE, OTHER = ([{"role": "user", "content": text}] for text in ("One?", "Other?"))


def row(step: int, prompt: list[dict[str, str]], completion: str, reward: float | None) -> dict[str, Any]:
    return {"step": step, "prompt": prompt, "completion": completion, "reward": reward, "answer": "x"}


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "completions.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_of_three_steps_it_shows_the_prompt_that_taught_most_with_its_best_and_its_worst(tmp_path: Path) -> None:
    rows = [row(step, ONE, f"same {step}", 1.0) for step in range(1, 6)] * 2
    rows += [row(3, OTHER, "good", 0.9), row(3, OTHER, "bad", -0.5), row(3, OTHER, "no value", None)]
    found = read_written(write(tmp_path, sorted(rows, key=lambda one: one["step"])))
    assert [step.step for step in found] == [1, 3, 5]
    assert (found[1].prompt[0].content, found[1].best, found[1].worst) == ("Other?", ("good", 0.9), ("bad", -0.5))
    shown = written_samples(found)
    assert isinstance(shown, Samples)
    assert [item.outcome.text for item in shown.items] == ["step 1", "step 3", "step 5"]
    assert [[answer.is_better for answer in item.answers] for item in shown.items] == [
        [False, False],
        [True, False],
        [False, False],
    ]


def test_one_kept_step_is_shown_once_and_a_long_completion_is_cut(tmp_path: Path) -> None:
    (only,) = read_written(write(tmp_path, [row(7, ONE, "a" * 5000, 1.0)]))
    assert only.worst is None and [len(item.answers) for item in written_samples((only,)).items] == [1]
    assert only.step == 7 and len(only.best[0]) < 2100 and only.best[0].endswith(" …")


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert read_written(tmp_path / "nowhere.parquet") == ()
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1")
    assert read_written(tmp_path / "damaged.parquet") == ()
    assert read_written(write(tmp_path, [row(1, ONE, "a", None)])) == ()
