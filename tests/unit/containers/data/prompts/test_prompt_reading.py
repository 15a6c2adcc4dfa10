"""Prompt sets whose source says how they are read: other names of columns, and a slice of the rows."""

import json
from pathlib import Path

import pytest

from containers.contracts.configs.parts.row_filters import RowReading
from containers.contracts.spec import StageInput
from containers.data.prompts.reading import PROMPTS
from containers.harness.errors import BadDataError

ROWS = [{"frage": f"What is {number} + 1?", "prompt": "not this", "loesung": str(number + 1)} for number in range(10)]
COLUMNS = {"prompt": "frage", "answer": "loesung"}


@pytest.fixture
def item(tmp_path: Path) -> StageInput:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return StageInput(name="train_data", path=str(path), digest="x")


def test_columns_have_the_names_that_the_source_gives(item: StageInput) -> None:
    source = PROMPTS.source(item, split="train", reading=RowReading(columns=COLUMNS))
    assert source.rows[2].row.prompt == ({"role": "user", "content": "What is 2 + 1?"},)
    assert [placed.row.answer for placed in source.rows] == [row["loesung"] for row in ROWS]


def test_a_missing_column_is_named_with_a_near_one(item: StageInput) -> None:
    with pytest.raises(BadDataError, match="Did you mean `frage`"):
        PROMPTS.source(item, split="train", reading=RowReading(columns={"prompt": "fragen"}))


def test_a_slice_takes_its_rows_and_those_of_the_other_split_are_its_own(item: StageInput) -> None:
    reading = RowReading(columns=COLUMNS, train_rows="[:30%]", validation_rows="[8:]")
    train = PROMPTS.source(item, split="train", reading=reading)
    judged = PROMPTS.source(item, split="validation", reading=reading)
    assert [placed.row.answer for placed in train.rows] == ["1", "2", "3"]
    assert [placed.row.answer for placed in judged.rows] == ["9", "10"]
