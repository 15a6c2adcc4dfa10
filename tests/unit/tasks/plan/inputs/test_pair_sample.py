"""A plan looks at rows of every schema that the filter reads, at few of them, and never dies of a damaged one."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.config.sources import DatasetSource
from tasks.plan.inputs import pair_sample
from tasks.plan.inputs.data import local_files
from tasks.plan.inputs.pair_sample import SAMPLE_ROWS, PairTexts, are_all_taken, sample_pairs


def pairs_of(folder: Path, *rows: dict[str, Any]) -> list[PairTexts]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(sample_pairs([path], num_rows=len(rows)))


USER = {"role": "user", "content": "Why?"}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "row",
    [
        {"context": [USER], "response1": "A.", "response2": "No idea.", "overall_preference": -1},
        {"context": "Why?", "response1": "A.", "response2": "No idea.", "overall_preference": -1},
        {"prompt": [USER], "chosen": [said("A.")], "rejected": [said("No idea.")]},
        {"prompt": [USER], "chosen": [USER, said("A.")], "rejected": [USER, said("No idea.")]},
        {"prompt": "Why?", "chosen": "A.", "rejected": "No idea."},
        {"chosen": [USER, said("A.")], "rejected": [USER, said("No idea.")]},
        {"chosen": "Why? A.", "rejected": "Why? No idea."},
        {"prompt": "Why?", "response_a": "A.", "response_b": "No idea.", "winner": "a"},
        {
            "instruction": "Why?",
            "completions": [
                {"response": "No idea.", "overall_score": 2},
                {"response": "Maybe.", "overall_score": 5},
                {"response": "A.", "overall_score": 8},
            ],
        },
    ],
    ids=[
        *("HelpSteer3", "HelpSteer3 text", "TRL", "TRL with repeated prompt", "TRL texts", "TRL without prompt"),
        *("TRL texts without prompt", "arena", "UltraFeedback"),
    ],
)
def test_prompt_and_answers_are_found_in_every_schema(tmp_path: Path, row: dict[str, Any]) -> None:
    (found,) = pairs_of(tmp_path, row)
    assert (found.prompt, found.chosen, found.rejected, found.num_turns) == ("Why?", "A.", "No idea.", 1)
    assert found.num_characters == len("Why?No idea.")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": 3, "chosen": "A.", "rejected": "B."},
        {"prompt": [USER], "chosen": [{"role": "assistant", "content": None}], "rejected": [said("B.")]},
        {"chosen": None, "rejected": []},
        {"instruction": "Why?", "completions": [{"response": "A."}]},
        {"context": [USER], "response1": ["A."], "response2": {}, "overall_preference": 0},
        {"context": [USER], "response1": "A.", "response2": "B.", "overall_preference": "much"},
    ],
)
def test_a_row_that_the_stage_cannot_use_is_left_out(tmp_path: Path, row: dict[str, Any]) -> None:
    good = {"prompt": "Why?", "chosen": "A.", "rejected": "B."}
    assert [pair.prompt for pair in pairs_of(tmp_path, row, good, good, good)] in (["Why?"] * 3, [])
    assert pairs_of(tmp_path, row) == []


def test_comparisons_are_two_lines_each(tmp_path: Path) -> None:
    found = pairs_of(tmp_path, {"text": "Why? A."}, {"text": "Why? No idea."})
    assert [(pair.prompt, pair.chosen.strip(), pair.rejected.strip()) for pair in found] == [("Why?", "A.", "No idea.")]


def test_a_file_in_no_schema_gives_none_and_stops_no_plan(tmp_path: Path) -> None:
    assert pairs_of(tmp_path, {"question": "Why?"}, {"answer": 3}) == []


def rows(folder: Path, count: int, *, name: str = "rows.jsonl") -> Path:
    text = "".join(
        json.dumps({"prompt": f"Question {number}?", "chosen": "Yes.", "rejected": "No."}) + "\n"
        for number in range(count)
    )
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_many_rows_are_sampled_evenly_and_few_are_all_taken(tmp_path: Path, name: str) -> None:
    many = rows(tmp_path, 10_500, name=name)
    found = [int(pair.prompt.split()[1].rstrip("?")) for pair in sample_pairs([many], num_rows=10_500)]
    assert SAMPLE_ROWS <= len(found) < 2 * SAMPLE_ROWS
    assert {later - earlier for earlier, later in pairwise(found)} == {10}
    assert found[-1] > 10_480
    few = rows(tmp_path, 1_500, name=name)
    assert len(list(sample_pairs([few], num_rows=1_500))) == 1_500
    assert are_all_taken([few], num_rows=1_500) and not are_all_taken([many], num_rows=10_500)


def test_rows_that_nobody_counted_give_the_first_ones(tmp_path: Path) -> None:
    assert len(list(sample_pairs([rows(tmp_path, 10_500)], num_rows=None))) == 2 * SAMPLE_ROWS


def test_parquet_as_the_filter_writes_it_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    row = {"prompt": [USER], "chosen": [said("A.")], "rejected": [said("No idea.")], "margin": 1.0, "pair_id": "x"}
    parquet.write_table(pyarrow.Table.from_pylist([row] * 700), tmp_path / "train.parquet")
    found = list(sample_pairs([tmp_path / "train.parquet"], num_rows=700))
    assert len(found) == 700 and found[0].prompt == "Why?" and found[0].rejected == "No idea."


def test_damaged_lines_and_files_cost_only_themselves(tmp_path: Path) -> None:
    good = rows(tmp_path, 20)
    with open(good, "ab") as stream:
        stream.write(b"\xff\xfe not utf-8\n[1, 2]\n{broken\n\n")
    (tmp_path / "half.jsonl.gz").write_bytes(rows(tmp_path, 500, name="whole.jsonl.gz").read_bytes()[:200])
    (tmp_path / "no.parquet").write_bytes(b"PAR1 no")
    assert len(list(sample_pairs([good], num_rows=24))) == 20
    assert len(list(sample_pairs([tmp_path / "half.jsonl.gz"], num_rows=None))) < 500
    assert list(sample_pairs([tmp_path / "no.parquet", tmp_path / "missing.jsonl"], num_rows=None)) == []


def test_a_file_of_blank_lines_is_given_up_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blank line is one byte; 256 MiB of them took minutes."""
    monkeypatch.setattr(pair_sample, "_MAX_READ_BYTES", 1024**2)
    path = tmp_path / "x.jsonl.gz"
    row = json.dumps({"prompt": "Why?", "chosen": "A.", "rejected": "No."}).encode() + b"\n"
    path.write_bytes(gzip.compress(row + b"\n" * 20_000 + row))
    assert len(list(sample_pairs([path], num_rows=2))) == 1


def test_a_parquet_bomb_is_no_sample_and_a_row_over_the_limit_is_left_out(tmp_path: Path) -> None:
    """Each row refers to a text that is there once; 16 of them are what 64 MiB hold."""
    options = {"compression": "zstd", "dictionary_pagesize_limit": 2**30}
    for name, length, most in (("bomb", 4 * 1024**2, 16), ("long", 9 * 1024**2, 0)):
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * 500, pa.int32()), ["x" * length])
        columns = {"prompt": ["p"] * 500, "chosen": texts, "rejected": ["r"] * 500}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet", **options)
        found = [len(pair.chosen) for pair in sample_pairs([tmp_path / f"{name}.parquet"], num_rows=500)]
        assert len(found) <= most
        assert set(found) <= {length}


def test_columns_of_other_names_are_read_where_the_source_names_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"frage": "Why?", "good": "So.", "bad": "No."}) + "\n")
    columns = {"prompt": "frage", "chosen": "good", "rejected": "bad"}
    dataset = DatasetSource.model_validate({"train": str(path), "columns": columns})
    readings = local_files(dataset)
    assert list(sample_pairs(tuple(readings), num_rows=1, readings=readings)) == [PairTexts("Why?", "So.", "No.", 1)]
    assert list(sample_pairs([path], num_rows=1)) == []
