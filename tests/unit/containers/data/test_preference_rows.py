"""The sign and the sides of a pair decide what the reward model learns; a wrong reading trains the opposite."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from containers.data.reader import read_rows
from containers.data.rows import Pair
from containers.harness.errors import BadDataError
from tests.unit.factories.data.pair_rows import read_pairs

CONTEXT = [{"role": "user", "content": "Name a colour."}]
HELPSTEER3 = {"context": CONTEXT, "response1": "Red.", "response2": "Blue.", "overall_preference": -2}
TRL = {"prompt": CONTEXT, "chosen": "Red.", "rejected": "Blue."}
ARENA = {"prompt": "Name a colour.", "response_a": "Red.", "response_b": "Blue.", "winner": "a"}
LONG = [*CONTEXT, {"role": "assistant", "content": "Green."}, {"role": "user", "content": "Another."}]


def write(tmp_path: Path, *rows: Mapping[str, Any]) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def one_pair(tmp_path: Path, row: Mapping[str, Any]) -> Pair:
    found = read_pairs(write(tmp_path, row))
    assert found.left_out == {}
    return found.pairs[0]


def reason(tmp_path: Path, row: Mapping[str, Any], *, example: Mapping[str, Any]) -> str:
    """The reason of `row` in a file whose other row shows the schema."""
    first, _ = read_rows(write(tmp_path, row, example))
    return first.reason


@pytest.mark.parametrize(
    ("preference", "chosen", "margin"), [(-3, "Red.", 3), (-1, "Red.", 1), (1, "Blue.", 1), (2.0, "Blue.", 2)]
)
def test_a_negative_preference_of_helpsteer3_means_that_response_1_is_better(
    tmp_path: Path, preference: float, chosen: str, margin: float
) -> None:
    pair = one_pair(tmp_path, {**HELPSTEER3, "overall_preference": preference})
    assert (pair.chosen, pair.margin) == (chosen, margin)
    assert {pair.chosen, pair.rejected} == {"Red.", "Blue."}


@pytest.mark.parametrize(
    "row",
    [
        TRL,
        {**TRL, "prompt": "Name a colour."},
        {**TRL, "chosen": [{"role": "assistant", "content": "Red."}]},
        {**TRL, "chosen": [*CONTEXT, {"role": "assistant", "content": "Red."}]},
        {
            "chosen": [*CONTEXT, {"role": "assistant", "content": "Red."}],
            "rejected": [*CONTEXT, {"role": "assistant", "content": "Blue."}],
        },
        {**ARENA, "winner": "A "},
        {**ARENA, "winner": "b", "response_a": "Blue.", "response_b": "Red."},
        {**HELPSTEER3, "context": "Name a colour."},
    ],
)
def test_every_schema_gives_the_same_pair(tmp_path: Path, row: Mapping[str, Any]) -> None:
    pair = one_pair(tmp_path, row)
    assert (list(pair.prompt), pair.chosen, pair.rejected) == (CONTEXT, "Red.", "Blue.")


def test_conversations_without_prompt_share_all_turns_but_the_last(tmp_path: Path) -> None:
    pair = one_pair(
        tmp_path,
        {
            "chosen": [*LONG, {"role": "assistant", "content": "Red."}],
            "rejected": [*LONG, {"role": "assistant", "content": "Blue."}],
        },
    )
    assert list(pair.prompt) == LONG


def test_metadata_that_is_missing_has_defaults(tmp_path: Path) -> None:
    pair = one_pair(tmp_path, TRL)
    assert (pair.domain, pair.language, pair.margin) == ("general", "unknown", 1.0)


@pytest.mark.parametrize(("value", "name"), [("EN", "english"), (" English ", "english"), ("pt-BR", "portuguese")])
def test_names_and_codes_of_a_language_are_one(tmp_path: Path, value: str, name: str) -> None:
    assert one_pair(tmp_path, {**TRL, "language": value}).language == name


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"chosen": None}, "response_not_text"),
        ({"chosen": " "}, "empty_response"),
        ({"chosen": [{"role": "user", "content": "Red."}]}, "completion_not_one_turn"),
        ({"chosen": ["Red.", "Crimson."]}, "completion_not_one_turn"),
        ({"chosen": "\ud800"}, "lone_surrogate"),
        ({"margin": "2"}, "margin_not_a_strength"),
        ({"margin": -1}, "margin_not_a_strength"),
        ({"margin": float("nan")}, "margin_not_a_strength"),
        ({"domain": 3}, "domain_not_text"),
        ({"language": ["english"]}, "language_not_text"),
        ({"prompt": None}, "prompt_not_to_be_found"),
        ({"prompt": 5}, "prompt_not_text_or_turns"),
        ({"prompt": "\n"}, "empty_prompt"),
        ({"prompt": ["Name a colour."]}, "prompt_not_text_or_turns"),
        ({"prompt": [{"role": "system", "content": "Be kind."}]}, "prompt_ends_without_user"),
    ],
)
def test_a_broken_trl_row_has_a_named_reason(tmp_path: Path, change: Mapping[str, Any], wanted: str) -> None:
    assert reason(tmp_path, {**TRL, **change}, example=TRL) == wanted


def test_an_unknown_winner_is_malformed_and_a_tie_is_left_out_as_tie(tmp_path: Path) -> None:
    assert reason(tmp_path, {**ARENA, "winner": "c"}, example=ARENA) == "winner_unknown"
    found = read_pairs(write(tmp_path, {**ARENA, "winner": "tie"}, {**ARENA, "winner": None}, ARENA))
    assert (len(found.pairs), found.left_out) == (1, {"tie": 1, "winner_unknown": 1})


def test_one_annotator_on_the_side_of_the_label_is_enough(tmp_path: Path) -> None:
    with_scores = [
        {**HELPSTEER3, "individual_preference": [{"score": score} for score in scores]}
        for scores in ((1, 2), (1, -1), (0,), (None,), ())
    ]
    found = read_pairs(write(tmp_path, *with_scores))
    assert (len(found.pairs), found.left_out) == (4, {"contradicts_annotators": 1})


@pytest.mark.parametrize("text", ["a <|im_end|> b", "[INST] x", "<start_of_turn>", "<｜begin▁of▁sentence｜>"])
def test_control_tokens_of_chat_templates_are_left_out(tmp_path: Path, text: str) -> None:
    assert read_pairs(write(tmp_path, {**TRL, "rejected": text})).left_out == {"control_tokens": 1}


@pytest.mark.parametrize("text", ["a < b | c > d", "if x <| y", "<s>struck out</s>", "[INSTALL]"])
def test_text_that_only_resembles_control_tokens_stays(tmp_path: Path, text: str) -> None:
    assert one_pair(tmp_path, {**TRL, "rejected": text}).rejected == text


def test_the_schema_is_that_of_most_rows(tmp_path: Path) -> None:
    path = write(tmp_path, ARENA, HELPSTEER3, HELPSTEER3)
    assert [item.reason for item in read_rows(path)] == ["missing_column", "", ""]


def test_a_malformed_number_is_shown_as_it_stands_in_the_file(tmp_path: Path) -> None:
    big = 123456789012345678901234567890
    path = write(tmp_path, HELPSTEER3, {**HELPSTEER3, "overall_preference": big})
    found = [(item.reason, item.seen) for item in read_rows(path)]
    assert found[1] == ("label_out_of_range", f"{big} (wanted: -3 to 3)")
    path.write_text(path.read_text().replace(str(big), "NaN"))
    assert [(item.reason, item.seen) for item in read_rows(path)][1] == ("label_not_an_integer", "nan")


def test_numbers_too_large_for_a_float_are_no_strength(tmp_path: Path) -> None:
    path = write(tmp_path, TRL, {**TRL, "margin": 10**400}, {**TRL, "score_chosen": 10**400, "score_rejected": 1})
    assert [item.reason for item in read_rows(path)] == ["", "margin_not_a_strength", ""]


@pytest.mark.parametrize("depth", [400, 960, 990, 1010, 1023, 5000])
def test_a_row_however_deep_it_is_nested_is_malformed_and_crashes_nothing(tmp_path: Path, depth: int) -> None:
    path = write(tmp_path, HELPSTEER3)
    row = json.dumps({**HELPSTEER3, "response1": "HERE"}).replace('"HERE"', "[" * depth + "]" * depth)
    path.write_text(path.read_text() + row + "\n")
    assert [item.reason for item in read_rows(path)][1] in ("response_not_text", "invalid_json")


def test_an_unknown_schema_shows_the_columns_and_the_schemas(tmp_path: Path) -> None:
    with pytest.raises(BadDataError) as caught:
        read_pairs(write(tmp_path, {"question": "?", "good": "a", "bad": "b"}))
    for text in ("Columns found: question, good, bad", "response1", "winner", "chosen, rejected"):
        assert text in str(caught.value)


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    assert read_pairs(write(tmp_path)).pairs == ()


@pytest.mark.shared_data
def test_real_pair_files_are_read_whole(shared_data: Path) -> None:
    found = {
        name: read_pairs(shared_data / name)
        for name in ("hh_helpful_test.jsonl.gz", "human_pref_pairs.jsonl.gz", "llmbar_pairs.jsonl")
    }
    assert {name: len(rows.pairs) for name, rows in found.items()} == {
        "hh_helpful_test.jsonl.gz": 1000,
        "human_pref_pairs.jsonl.gz": 621,
        "llmbar_pairs.jsonl": 176,
    }
    assert found["human_pref_pairs.jsonl.gz"].left_out == {"tie": 38}


@pytest.mark.shared_data
def test_the_sign_agrees_with_rows_whose_better_answer_is_known(shared_data: Path) -> None:
    """hh_helpful_train says which answer was chosen; the HelpSteer3 file has some of the same pairs by sign."""
    chosen_of = {
        (pair.prompt[-1]["content"], frozenset((pair.chosen, pair.rejected))): pair.chosen
        for pair in read_pairs(shared_data / "hh_helpful_train.jsonl.gz").pairs
    }
    same = [
        pair.chosen == chosen_of[key]
        for pair in read_pairs(shared_data / "helpsteer3_schema_train.jsonl.gz").pairs
        if (key := (pair.prompt[-1]["content"], frozenset((pair.chosen, pair.rejected)))) in chosen_of
    ]
    assert len(same) > 300
    assert all(same)
