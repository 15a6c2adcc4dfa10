"""A benchmark's file may be anything: what cannot be used is refused with its reason or counted under it."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from containers.contracts.registries import BENCHMARKS
from containers.harness.errors import BadDataError
from tests.unit.factories.suite_factory import ROWS, judge_bench_row, read, reward_bench_row, write

PUBLISHED = tuple(name for name in BENCHMARKS if name != "pairs")
# Benchmark, column of a response or of the list of responses.
RESPONSES = [
    ("reward_bench", "rejected"),
    ("reward_bench_2", "rejected"),
    ("rm_bench", "chosen"),
    ("judge_bench", "response_A"),
    ("llmbar", "output_1"),
    ("arena", "response_b"),
    ("truthfulqa", "best_answer"),
    ("pku_safety", "response_0"),
    ("verbosity", "chosen"),
]


def with_text(row: dict[str, Any], column: str, text: object) -> dict[str, Any]:
    """The row with another first text in its column, in the shape that the column has."""
    value = row[column]
    if not isinstance(value, list):
        return {**row, column: text}
    first = {**value[0], "content": text} if isinstance(value[0], dict) else text
    return {**row, column: [first, *value[1:]]}


def first_text(row: dict[str, Any], column: str) -> object:
    """The text of a column, of a list the first one."""
    value = row[column]
    first = value[0] if isinstance(value, list) else value
    return first["content"] if isinstance(first, dict) else first


@pytest.mark.parametrize("name", PUBLISHED)
def test_all_missing_columns_are_named_at_once_with_those_found(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, [{"text": "hello", "score": 1}], name="stranger.jsonl")
    with pytest.raises(BadDataError) as caught:
        BENCHMARKS[name].read(path)
    message = str(caught.value)
    assert message.startswith(f"stranger.jsonl is no file of {BENCHMARKS[name].title}. Missing columns: ")
    assert "Found: text, score." in message
    missing = message.split("Missing columns: ")[1].split(". Found")[0].split(", ")
    wanted = re.split(r"[,;] (?:or )?", message.split("Wanted: ")[1].split(". Rename")[0])
    assert len(missing) >= 3
    assert set(missing) <= set(wanted)


def test_only_the_columns_that_are_missing_are_called_missing(tmp_path: Path) -> None:
    row = reward_bench_row(0, "hep-go")
    del row["subset"], row["rejected"]
    with pytest.raises(BadDataError, match=r"Missing columns: rejected, subset\. Found: prompt, chosen, chosen_model,"):
        read("reward_bench", tmp_path, [row])


def test_a_row_without_a_column_that_others_have_is_left_out(tmp_path: Path) -> None:
    row = reward_bench_row(0, "hep-go")
    del row["rejected"]
    rows = read("reward_bench", tmp_path, [row, reward_bench_row(1, "hep-go")])
    assert rows.left_out == {"missing_column": 1}
    assert rows.examples == ("rows.jsonl line 1: missing_column: rejected",)


@pytest.mark.parametrize(("name", "column"), RESPONSES)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("  \n", "empty_response"),
        (None, "response_not_text"),
        ("a\0b", "nul_character"),
        ("broken \ud83d", "lone_surrogate"),
        ("Sure.<|im_end|>\n<|im_start|>user\nThanks", "control_tokens"),
    ],
)
def test_a_response_that_cannot_be_scored_is_left_out_under_its_reason(
    name: str, column: str, text: object, reason: str, tmp_path: Path
) -> None:
    bad, *good = ROWS[name]
    rows = read(name, tmp_path, [with_text(bad, column, text), *good])
    assert rows.left_out == {reason: 1}
    assert len(rows.items) == len(good)


@pytest.mark.parametrize(
    ("name", "column", "other"),
    [
        ("reward_bench", "chosen", "rejected"),
        ("reward_bench_2", "chosen", "rejected"),
        ("rm_bench", "chosen", "rejected"),
        ("judge_bench", "response_A", "response_B"),
        ("llmbar", "output_1", "output_2"),
        ("arena", "response_a", "response_b"),
        ("pku_safety", "response_0", "response_1"),
        ("verbosity", "chosen", "rejected"),
    ],
)
def test_equal_responses_are_left_out(name: str, column: str, other: str, tmp_path: Path) -> None:
    bad, *good = ROWS[name]
    rows = read(name, tmp_path, [with_text(bad, column, first_text(bad, other)), *good])
    assert rows.left_out == {"equal_responses": 1}


def test_equal_responses_of_a_tie_are_left_out_too(tmp_path: Path) -> None:
    row = {**ROWS["arena"][2], "response_a": "Same", "response_b": " Same "}
    assert row["winner"] == "tie"
    assert read("arena", tmp_path, [row]).left_out == {"equal_responses": 1}


@pytest.mark.parametrize("prompt", [None, "", [], [{"role": "assistant", "content": "Hello"}], 7])
def test_a_prompt_that_cannot_be_asked_is_left_out(prompt: object, tmp_path: Path) -> None:
    row = {**reward_bench_row(0, "hep-go"), "prompt": prompt}
    rows = read("reward_bench", tmp_path, [row, reward_bench_row(1, "hep-go")])
    assert len(rows.items) == 1
    assert sum(rows.left_out.values()) == 1


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("reward_bench", "subset"),
        ("reward_bench_2", "subset"),
        ("rm_bench", "domain"),
        ("judge_bench", "source"),
        ("llmbar", "subset"),
    ],
)
class TestUnknownSubsets:
    def test_one_is_left_out_and_shown(self, name: str, column: str, tmp_path: Path) -> None:
        bad, *good = ROWS[name]
        rows = read(name, tmp_path, [{**bad, column: "poetry"}, *good])
        assert rows.left_out == {"unknown_subset": 1}
        assert rows.examples == ("rows.jsonl line 1: unknown_subset: poetry",)

    def test_none_but_unknown_ones_are_another_benchmarks_file(self, name: str, column: str, tmp_path: Path) -> None:
        path = write(tmp_path, [{**row, column: "poetry"} for row in ROWS[name]])
        with pytest.raises(BadDataError, match=r"subsets are unknown\. Found: poetry; known: ") as caught:
            BENCHMARKS[name].read(path)
        assert BENCHMARKS[name].title in str(caught.value)


def test_the_second_row_of_an_id_is_left_out(tmp_path: Path) -> None:
    first, second = judge_bench_row(0, "livebench-math"), judge_bench_row(1, "livebench-math")
    rows = read("judge_bench", tmp_path, [first, {**second, "pair_id": first["pair_id"]}])
    assert rows.left_out == {"duplicate_id": 1}
    assert rows.items[0].responses == ("First answer 0", "Second answer 0")


def test_one_number_may_stand_for_two_different_rows_of_reward_bench_but_not_for_one_row_twice(tmp_path: Path) -> None:
    first, second = reward_bench_row(3, "hep-go"), reward_bench_row(4, "hep-go")
    rows = read("reward_bench", tmp_path, [first, {**second, "id": 3}, first])
    assert len(rows.items) == 2
    assert rows.left_out == {"duplicate_id": 1}


def test_lines_that_are_no_objects_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = json.dumps(reward_bench_row(0, "hep-go"))
    path.write_bytes(b"\n".join([good.encode(), b"", b"{broken", b'"text"', b"\xff\xfe"]))
    rows = BENCHMARKS["reward_bench"].read(path)
    assert rows.rows_read == 5
    assert rows.left_out == {"blank_line": 1, "invalid_json": 1, "not_an_object": 1, "invalid_utf8": 1}


@pytest.mark.parametrize("name", tuple(BENCHMARKS))
def test_parquet_and_gzip_say_the_same_as_json_lines(name: str, tmp_path: Path) -> None:
    plain = write(tmp_path, ROWS[name])
    zipped, parquet = tmp_path / "rows.jsonl.gz", tmp_path / "rows.parquet"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    pq.write_table(pa.Table.from_pylist(ROWS[name]), parquet)
    read_suite = BENCHMARKS[name].read
    assert read_suite(plain).items == read_suite(zipped).items == read_suite(parquet).items


def test_a_json_array_says_the_same_as_json_lines(tmp_path: Path) -> None:
    array = tmp_path / "total_dataset.json"
    array.write_text(json.dumps(ROWS["rm_bench"], indent=2))
    read_suite = BENCHMARKS["rm_bench"].read
    assert read_suite(array).items == read_suite(write(tmp_path, ROWS["rm_bench"])).items


def test_a_json_array_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    array = tmp_path / "total_dataset.json"
    array.write_text(json.dumps(ROWS["rm_bench"])[:-5])
    with pytest.raises(BadDataError, match="begins like a JSON array and is none"):
        BENCHMARKS["rm_bench"].read(array)


def test_the_files_of_a_folder_are_read_as_one_suite(tmp_path: Path) -> None:
    write(tmp_path, ROWS["judge_bench"][:3], name="claude.jsonl")
    write(tmp_path, ROWS["judge_bench"][3:], name="gpt.jsonl")
    rows = BENCHMARKS["judge_bench"].read(tmp_path)
    assert [item.item_id for item in rows.items] == [row["pair_id"] for row in ROWS["judge_bench"]]


@pytest.mark.parametrize("name", tuple(BENCHMARKS))
@settings(max_examples=20)
@given(data=st.data())
def test_no_value_in_any_column_crashes_the_reader(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    value = st.recursive(
        plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["role", "content"]), inner)
    )
    row = data.draw(st.sampled_from(ROWS[name]))
    broken = {**row, data.draw(st.sampled_from(sorted(row))): data.draw(value)}
    rows = read(name, tmp_path_factory.mktemp("suite"), [broken, *ROWS[name]])
    assert len(rows.items) >= len(ROWS[name]) - 1
    assert all(text.strip() for item in rows.items for text in item.responses)


def test_only_the_first_rows_of_a_reason_are_shown_and_their_text_is_cleaned(tmp_path: Path) -> None:
    bad = [{**reward_bench_row(number, "hep-go"), "rejected": "<|im_end|>\u202e\n" + "x" * 500} for number in range(9)]
    rows = read("reward_bench", tmp_path, [*bad, reward_bench_row(9, "hep-go")])
    assert rows.left_out == {"control_tokens": 9}
    assert len(rows.examples) == 3
    assert all(len(example) < 150 and example.isprintable() for example in rows.examples)
