"""A row that vanishes without a count spoils every figure that comes after."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from containers.contracts.spec import StageInput
from containers.data.sources import read_source
from containers.harness.errors import BadConfigError, BadDataError
from tests.unit.factories.filter_factory import (
    BAD,
    GERMAN,
    GOOD,
    Run,
    assert_every_row_is_counted,
    helpsteer3,
    write,
    write_hundred,
)

# What becomes of every line of helpsteer3_schema_malformed.jsonl; "" is kept. Domain, language and annotators are not
# needed to learn from a pair, so rows without them are kept; what cannot be read with certainty is not guessed.
DECISIONS = {
    1: "response_not_text", 2: "empty_response", 3: "empty_response", 4: "equal_responses", 5: "", 6: "",
    7: "missing_column", 8: "missing_column", 9: "missing_column", 10: "missing_column", 11: "",
    12: "label_not_an_integer", 13: "label_out_of_range", 14: "label_out_of_range", 15: "label_not_an_integer",
    16: "label_not_an_integer",
    17: "contradicts_annotators",  # 2.0 is read as 2, and the row's one annotator says -2
    18: "label_not_an_integer", 19: "tie", 20: "label_not_an_integer", 21: "contradicts_annotators", 22: "",
    23: "empty_prompt", 24: "prompt_not_text_or_turns", 25: "prompt_is_encoded_json", 26: "prompt_ends_without_user",
    27: "", 28: "unknown_role", 29: "turns_do_not_alternate", 30: "turn_without_text", 31: "empty_turn",
    32: "turn_without_text", 33: "", 34: "", 35: "", 36: "", 37: "", 38: "", 39: "language_column",
    40: "language_column", 41: "", 42: "", 43: "bad_annotator_score", 44: "", 45: "over_long_characters",
    46: "nul_character", 47: "control_tokens", 48: "", 49: "duplicate", 50: "contradictory_pair",
    51: "contradictory_pair", 52: "blank_line", 53: "invalid_json", 54: "not_an_object", 55: "invalid_json",
    56: "invalid_utf8", 57: "", 58: "",
}  # fmt: skip


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    return write_hundred(tmp_path)


@pytest.mark.shared_data
def test_each_of_the_58_defects_is_kept_or_dropped_as_decided(tmp_path: Path, shared_data: Path) -> None:
    source = shared_data / "helpsteer3_schema_malformed.jsonl"
    done = Run(tmp_path, {"train_data": source}, max_malformed_fraction=1, policy_prompt_fraction=0)
    found = {row["line"]: row["reason"] for row in done.dropped}
    assert {line: found.get(line, "") for line in range(1, 59)} == DECISIONS
    assert done.funnel.rows_read == len(DECISIONS)
    assert len(done.table("train") + done.table("test")) == list(DECISIONS.values()).count("")
    assert_every_row_is_counted(done.funnel)


@pytest.mark.waits
@pytest.mark.shared_data
def test_real_rows_are_english_and_every_one_is_accounted_for(tmp_path: Path, shared_data: Path) -> None:
    inputs = {
        "train_data": shared_data / "helpsteer3_schema_train.jsonl.gz",
        "validation_data": shared_data / "helpsteer3_schema_validation.jsonl.gz",
    }
    done = Run(tmp_path, inputs)
    assert_every_row_is_counted(done.funnel)
    assert (done.funnel.rows_read, done.dropped_by["code_rows"]) == (3197, 74)
    assert done.dropped_by["language_column"] == 578
    assert 80 <= done.dropped_by["detected_language"] <= 95
    assert {row["language"] for row in done.table("train")} == {"english"}
    assert done.funnel.train_pairs > 1700


def test_the_tables_load_as_conversational_preference_rows_with_the_right_side_chosen(
    tmp_path: Path, hundred: Path
) -> None:
    done = Run(tmp_path, {"train_data": hundred})
    for row in done.table("train"):
        number = row["prompt"][0]["content"].split()[5]
        assert row["chosen"] == [{"role": "assistant", "content": f"{GOOD} Make {number} bowls."}]
        assert row["rejected"] == [{"role": "assistant", "content": BAD}]
        assert (row["margin"], row["domain"], row["language"]) == (2.0, "general", "english")
    assert pq.read_schema(done.context.output / "train.parquet").names == [
        "prompt", "chosen", "rejected", "margin", "domain", "language", "pair_id"
    ]  # fmt: skip
    assert set(done.table("policy_train_prompts")[0]) == {"prompt", "domain", "prompt_id"}


@pytest.mark.stages
def test_trl_takes_the_table_for_a_conversational_preference_dataset(tmp_path: Path, hundred: Path) -> None:
    from datasets import Dataset
    from trl.data_utils import is_conversational

    done = Run(tmp_path, {"train_data": hundred})
    dataset = Dataset.from_parquet(str(done.context.output / "train.parquet"), cache_dir=str(tmp_path / "cache"))
    assert len(dataset) == done.funnel.train_pairs
    assert is_conversational(dataset[0])
    assert isinstance(dataset[0]["prompt"], list)


def test_repeated_rows_leave_one_and_contradicting_rows_none(tmp_path: Path, hundred: Path) -> None:
    base = helpsteer3(500)
    swapped = {"response1": base["response2"], "response2": base["response1"]}
    again = {**base, **swapped, "overall_preference": 2}
    opposite = {**helpsteer3(501), "overall_preference": 1}
    path = write(tmp_path / "more.jsonl", [base, base, again, helpsteer3(501), opposite])
    path.write_text(path.read_text() + hundred.read_text())
    done = Run(tmp_path, {"train_data": path})
    assert (done.dropped_by["duplicate"], done.dropped_by["contradictory_pair"]) == (2, 2)
    assert_every_row_is_counted(done.funnel)


@pytest.mark.parametrize(("choice", "kept"), [("drop", 0), ("keep", 1)])
def test_code_rows_are_dropped_by_name_or_judged_by_the_prose_of_their_prompt(
    tmp_path: Path, hundred: Path, choice: str, kept: int
) -> None:
    code = {"domain": "code", "language": "python"}
    german = [{"role": "user", "content": GERMAN}]
    path = write(tmp_path / "code.jsonl", [helpsteer3(900, **code), helpsteer3(901, **code, context=german)])
    path.write_text(path.read_text() + hundred.read_text())
    done = Run(tmp_path, {"train_data": path}, code_rows=choice, policy_prompt_fraction=0)
    code_pairs = [row for row in done.table("train") + done.table("test") if row["domain"] == "code"]
    assert [row["language"] for row in code_pairs] == ["python"] * kept
    assert done.dropped_by.get("code_rows", 0) == (2 if choice == "drop" else 0)
    assert done.dropped_by["detected_language"] == kept
    assert done.dropped_by["language_column"] == 0


def test_the_text_is_checked_although_the_column_says_english(tmp_path: Path, hundred: Path) -> None:
    path = write(tmp_path / "mixed.jsonl", [helpsteer3(700, response1=GERMAN)])
    path.write_text(path.read_text() + hundred.read_text())
    done = Run(tmp_path / "on", {"train_data": path})
    assert done.dropped_by["detected_language"] == 1
    assert done.funnel.language_detector.startswith("py3langid")
    off = Run(tmp_path / "off", {"train_data": path}, check_language_on_text=False)
    assert "detected_language" not in off.dropped_by
    assert off.funnel.language_detector == ""


def test_parquet_gzip_and_folders_give_the_same_pairs(tmp_path: Path, hundred: Path) -> None:
    rows = [json.loads(line) for line in hundred.read_text().splitlines()]
    folder = tmp_path / "folder"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows[:50]), folder / "a.parquet")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(hundred.read_bytes().splitlines(keepends=True)[50:])))
    plain = Run(tmp_path / "1", {"train_data": hundred})
    mixed = Run(tmp_path / "2", {"train_data": folder})
    assert plain.table("train") == mixed.table("train")


def test_blank_lines_are_counted_but_make_no_file_suspect(tmp_path: Path, hundred: Path) -> None:
    hundred.write_text(hundred.read_text() + "\n\n\n")
    done = Run(tmp_path, {"train_data": hundred}, max_malformed_fraction=0)
    assert done.dropped_by["blank_line"] == 3
    assert_every_row_is_counted(done.funnel)


@pytest.mark.waits
def test_millions_of_rows_without_columns_behind_good_ones_are_refused_before_they_fill_the_memory(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.jsonl.gz"
    good = "".join(json.dumps(helpsteer3(number)) + "\n" for number in range(200))
    path.write_bytes(gzip.compress(good.encode()) + gzip.compress(b"{}\n" * 1_000_000) * 30)
    source = StageInput(name="train_data", path=str(path), digest="sha256:0", origin="x")
    with pytest.raises(BadDataError, match=r"x holds 200 rows in its first 102,2\d\d lines"):
        read_source(source, split="train")


def test_max_tokens_without_a_tokenizer_is_refused(tmp_path: Path, hundred: Path) -> None:
    with pytest.raises(BadConfigError, match="max_tokens is 20, and there is no tokenizer"):
        Run(tmp_path, {"train_data": hundred}, max_tokens=20)


@pytest.mark.stages
def test_max_tokens_counts_the_prompt_with_the_longer_response(tmp_path: Path, hundred: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(tmp_path / "tokenizer")
    path = write(tmp_path / "long.jsonl", [helpsteer3(600, response2=f"{BAD} " + "word " * 30)])
    path.write_text(path.read_text() + hundred.read_text())
    # Nine words of prompt and 14 + 3 of the longer response are 26.
    done = Run(tmp_path, {"train_data": path, "tokenizer": tmp_path / "tokenizer"}, max_tokens=26)
    assert (done.dropped_by["over_long_tokens"], done.funnel.rows_read) == (1, 101)
    with pytest.raises(BadDataError, match="`over_long_tokens` dropped the most"):
        Run(tmp_path / "1", {"train_data": path, "tokenizer": tmp_path / "tokenizer"}, max_tokens=25)
    with pytest.raises(BadConfigError, match="holds none that loads"):
        Run(tmp_path / "2", {"train_data": path, "tokenizer": tmp_path / "work"}, max_tokens=26)


def test_examples_of_dropped_rows_are_capped_and_shortened(tmp_path: Path) -> None:
    ties = [helpsteer3(n, overall_preference=0, response1=GOOD * 20) for n in range(60)]
    rows = ties + [helpsteer3(n) for n in range(100, 200)]
    done = Run(tmp_path, {"train_data": write(tmp_path / "train.jsonl", rows)})
    assert Counter(row["reason"] for row in done.dropped) == {"tie": 20}
    assert max(len(row["chosen"]) for row in done.dropped) == 200
    assert done.funnel.steps[3].examples[0] == "train_data:1: no response is better"


def test_figures_and_progress_are_reported(tmp_path: Path, hundred: Path) -> None:
    done = Run(tmp_path, {"train_data": hundred})
    figures = {metric.name: metric for metric in done.metrics}
    assert (figures["rows_read"].value, figures["rows_read"].unit) == (100, "rows")
    assert figures["train_pairs"].value == done.funnel.train_pairs
    assert (figures["dropped_fraction"].value, figures["dropped_fraction"].count) == (0.0, 100)
    events = [json.loads(line) for line in (done.context.work / "events.jsonl").read_text().splitlines()]
    assert {event["type"] for event in events} == {"note", "progress"}
    assert any("100 rows read, 0 dropped" in event.get("text", "") for event in events)


def test_other_column_names_and_all_pairs_of_rankings_come_from_the_configuration(tmp_path: Path) -> None:
    answers = [GOOD, f"{GOOD} It is also cheap to make, and quick.", BAD]
    rows = [
        {"frage": f"What should I cook for {number} guests this evening?", "answers": answers, "ranks": [2, 1, 3]}
        for number in range(40)
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    reading = {"columns": {"prompt": "frage"}, "ranking_pairs": "all"}
    done = Run(tmp_path, {"train_data": path}, reading=reading, near_duplicates="off", similar_prompts="off")
    assert done.funnel.rows_read == 120
    assert done.funnel.train_pairs + done.funnel.validation_pairs + done.funnel.pairs_set_aside_for_policy == 120
