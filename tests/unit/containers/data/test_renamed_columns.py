"""A column under another name must be read as if it had ours; a wrong name must be refused, never read as nothing."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from containers.contracts.configs.parts.row_filters import RowReading
from containers.data.reader import read_rows
from containers.data.renamed_columns import renamed
from containers.harness.errors import BadDataError

# As lvwerra/stack-exchange-paired: `response_j` was voted above `response_k`.
PAIRED = {"qid": 1, "question": "Name a colour.", "response_j": "Red.", "response_k": "Blue."}
COLUMNS = {"prompt": "question", "chosen": "response_j", "rejected": "response_k"}


def written(folder: Path, *rows: Any, name: str = "rows.jsonl") -> Path:
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_file_with_other_names_is_read_as_if_it_had_ours(tmp_path: Path, name: str) -> None:
    (found,) = read_rows(written(tmp_path, PAIRED, name=name), RowReading(columns=COLUMNS))
    ours = {"prompt": "Name a colour.", "chosen": "Red.", "rejected": "Blue."}
    (wanted,) = read_rows(written(tmp_path, ours, name=f"ours-{name}"))
    assert found.row == wanted.row and found.row is not None


def test_columns_of_ours_give_way_and_names_can_change_places() -> None:
    assert renamed({"question": 1, "prompt": 2, "x": 3}, {"prompt": "question"}) == {"prompt": 1, "x": 3}
    assert renamed({"prompt": 2}, {"prompt": "question"}) == {}
    swapped = renamed({"chosen": 1, "rejected": 2}, {"chosen": "rejected", "rejected": "chosen"})
    assert swapped == {"chosen": 2, "rejected": 1}


def test_a_name_that_no_row_has_is_refused_with_the_columns_found_and_a_near_one(tmp_path: Path) -> None:
    path = written(tmp_path, PAIRED)
    with pytest.raises(BadDataError) as caught:
        list(read_rows(path, RowReading(columns={**COLUMNS, "prompt": "qestion"})))
    said = str(caught.value)
    assert said.startswith("rows.jsonl has no column of the name that `columns` gives (`prompt: qestion`).")
    assert "Columns found: qid, question, response_j, response_k." in said and "Did you mean `question`?" in said


def test_a_row_that_lacks_the_column_is_counted_as_it_is(tmp_path: Path) -> None:
    lacking = {name: value for name, value in PAIRED.items() if name != "response_k"}
    reads = list(read_rows(written(tmp_path, PAIRED, lacking, "{broken", ""), RowReading(columns=COLUMNS)))
    assert [read.reason for read in reads] == ["", "missing_column", "invalid_json", "blank_line"]


def test_a_number_too_long_for_64_bits_is_shown_as_the_file_has_it(tmp_path: Path) -> None:
    path = written(tmp_path, PAIRED, {**PAIRED, "response_j": 2**70})
    assert list(read_rows(path, RowReading(columns=COLUMNS)))[1].seen == str(2**70)


def test_two_lines_of_one_row_may_have_other_names_too(tmp_path: Path) -> None:
    lines = [{"line": f"User: Name a colour.\n\nAssistant: {answer}"} for answer in ("Red.", "Blue.")]
    (found,) = read_rows(written(tmp_path, *lines), RowReading(columns={"text": "line"}))
    assert found.row is not None and found.row.pair.chosen == "Red."
    kto = [{"instruction": "A?", "output": answer, "kto_tag": answer == "good"} for answer in ("good", "bad")]
    columns = {"prompt": "instruction", "completion": "output", "label": "kto_tag"}
    (found,) = read_rows(written(tmp_path, *kto), RowReading(columns=columns))
    assert found.row is not None and (found.row.pair.chosen, found.row.pair.rejected) == ("good", "bad")
