"""A critic that expects nonsense shows only token by token."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from containers.report.policy.expected import expected_plots, read_expected


def row(step: int, values: list[float], **more: Any) -> dict[str, Any]:
    tokens = [f"token{place}" for place in range(len(values))]
    return {"step": step, "completion": "Some <b>text</b>", "reward": 0.5, "tokens": tokens, "expected": values, **more}


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "completions.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_three_completions_of_the_last_kept_step_are_drawn(tmp_path: Path) -> None:
    rows = [row(1, [0.1]), *(row(9, [0.25, 0.5 * place]) for place in range(4)), row(9, [], reward=None)]
    found = read_expected(write(tmp_path, rows))
    assert [(one.step, one.values[1], one.tokens) for one in found] == [
        (9, 0.5 * place, ("token0", "token1")) for place in range(3)
    ]
    plots = expected_plots(found)
    assert [plot.title for plot in plots] == [f"Expected at step 9, completion {place}" for place in (1, 2, 3)]
    assert "Before the first token 0.250, before the last 1.00" in plots[2].note
    assert "token1" in plots[0].svg or "<path" in plots[0].svg


def test_a_long_completion_has_numbers_in_place_of_tokens(tmp_path: Path) -> None:
    (plot,) = expected_plots(read_expected(write(tmp_path, [row(2, [0.1] * 300)])))
    assert len(plot.svg) < 60_000


def test_without_a_critic_and_without_a_readable_file_there_is_nothing(tmp_path: Path) -> None:
    plain = [{name: value for name, value in row(1, [0.1]).items() if name not in ("tokens", "expected")}]
    assert read_expected(write(tmp_path, plain)) == ()
    assert read_expected(tmp_path / "nowhere.parquet") == ()
    assert read_expected(write(tmp_path, [row(1, [], reward=None)])) == ()
