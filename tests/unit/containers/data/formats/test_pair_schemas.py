"""Every schema that the check lets pass must have a reader in the stage, and every reader must see the same pair."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.data.formats.columns import SCHEMAS, PreferenceSchema, detect_schema
from containers.data.reader import read_rows
from containers.data.rows import MalformedRowError, PreferenceRow
from tests.unit.factories.data.pair_rows import read_pairs

PROMPT = "Name a colour."
USER = {"role": "user", "content": PROMPT}
RED, BLUE = {"role": "assistant", "content": "Red."}, {"role": "assistant", "content": "Blue."}
# The columns of HuggingFaceH4/ultrafeedback_binarized, of argilla's edition, and of openbmb/UltraFeedback.
BINARIZED = {
    "prompt": PROMPT, "prompt_id": "0a", "messages": [USER, RED], "chosen": [USER, RED], "rejected": [USER, BLUE],
    "score_chosen": 8.5, "score_rejected": 7.0,
}  # fmt: skip
ARGILLA = {
    "source": "sharegpt", "prompt": PROMPT, "chosen": [USER, RED], "chosen-rating": 5.0, "chosen-model": "a",
    "rejected": [USER, BLUE], "rejected-rating": 4.25, "rejected-model": "b",
}  # fmt: skip


def completion(response: str, overall: float | None, fine_grained: float | None = None) -> dict[str, Any]:
    return {"model": "m", "response": response, "overall_score": overall, "fine-grained_score": fine_grained}


def ultrafeedback(*completions: dict[str, Any]) -> dict[str, Any]:
    return {"source": "evol_instruct", "instruction": PROMPT, "models": [], "completions": list(completions)}


def parse(value: Mapping[str, Any]) -> PreferenceRow:
    return detect_schema([value], file="rows.jsonl").parse(value)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_schema_that_the_check_knows_has_a_reader_that_wants_just_its_columns(schema: PreferenceSchema) -> None:
    empty = dict.fromkeys(schema.example)
    found = detect_schema([empty], file="rows.jsonl")
    assert found is schema
    with pytest.raises(MalformedRowError) as caught:
        found.parse(empty)
    assert caught.value.reason != "missing_column"


@pytest.mark.parametrize(
    "value",
    [
        BINARIZED,
        ARGILLA,
        ultrafeedback(completion("Grey.", 5), completion("Red.", 8.0), completion("Blue.", 3.5)),
        {"chosen": f"\n\nHuman: {PROMPT}\n\nAssistant: Red.", "rejected": f"\n\nHuman: {PROMPT}\n\nAssistant: Blue."},
        {"prompt": f"\n\nHuman: {PROMPT}\n\nAssistant:", "chosen": " Red.", "rejected": " Blue."},
        {"chosen": f"{PROMPT} Red.", "rejected": f"{PROMPT} Blue."},
        {"prompt": PROMPT, "response_a": "Blue.", "response_b": "Red.", "winner": "model_b"},
    ],
)
def test_published_forms_give_the_same_pair(value: Mapping[str, Any]) -> None:
    row = parse(value)
    assert (list(row.pair.prompt), row.pair.chosen.strip(), row.pair.rejected.strip()) == ([USER], "Red.", "Blue.")
    assert not row.is_tie and not row.contradicts_annotators


@pytest.mark.parametrize(("better", "worse", "strength"), [(8, 7.5, 1), (8.5, 7, 2), (10, 1, 3), (9, 8, 1)])
def test_scores_beside_a_pair_tell_its_strength(better: float, worse: float, strength: float) -> None:
    row = parse({**BINARIZED, "score_chosen": better, "score_rejected": worse})
    assert (row.pair.margin, row.agrees_with_scores) == (strength, True)


def test_equal_scores_are_a_tie_and_scores_against_the_label_contradict_it() -> None:
    assert parse({**BINARIZED, "score_rejected": 8.5}).is_tie
    against = parse({**BINARIZED, "score_chosen": 2.0})
    assert (against.contradicts_annotators, against.agrees_with_scores) == (True, False)


def test_an_answer_of_1_written_as_10_is_betrayed_by_its_aspects() -> None:
    row = parse(ultrafeedback(completion("Red.", 10.0, 1.25), completion("Blue.", 7.5, 4.75)))
    assert row.contradicts_annotators


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (ultrafeedback(completion("Red.", 5), completion("Blue.", None)), "fewer_than_two_scores"),
        ({**ultrafeedback(), "completions": ["Red."]}, "completions_not_objects"),
        ({"chosen": "Red.", "rejected": "Blue."}, "prompt_not_to_be_found"),
        ({"chosen": "\n\nHuman: A?\n\nAssistant: b", "rejected": "\n\nHuman: C?\n\nAssistant: d"}, "empty_prompt"),
        (
            {"chosen": "\n\nHuman: A?\n\nHuman: B?\n\nAssistant: c",
             "rejected": "\n\nHuman: A?\n\nHuman: B?\n\nAssistant: d"},
            "turns_do_not_alternate",
        ),
        (
            {"chosen": "\n\nHuman: A?\n\nAssistant: b\n\nHuman: C?\n\nAssistant: d",
             "rejected": "\n\nHuman: A?\n\nAssistant: b"},
            "completion_not_one_turn",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_read_with_certainty_has_a_named_reason(value: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(MalformedRowError) as caught:
        parse(value)
    assert caught.value.reason == reason


def comparisons(path: Path, *texts: str | None) -> Path:
    path.write_text("".join("" if text is None else json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.mark.parametrize(
    "form",
    [
        "User: Name a colour.\n\nAssistant: {}",
        "User: Name a colour.\nAssistant: {}",
        "<extra_id_0>System\n\n<extra_id_1>User\nName a colour.\n<extra_id_1>Assistant\n{}",
        "\n\nHuman: Name a colour.\n\nAssistant: {}",
    ],
)
def test_two_lines_of_comparisons_are_one_pair_the_good_line_first(tmp_path: Path, form: str) -> None:
    path = comparisons(tmp_path / "train_comparisons.jsonl", form.format("Red."), form.format("Blue."))
    (pair,) = read_pairs(path).pairs
    assert (list(pair.prompt), pair.chosen, pair.rejected) == ([USER], "Red.", "Blue.")


def test_a_lost_line_of_comparisons_is_not_read_as_pairs_the_other_way_round(tmp_path: Path) -> None:
    lines = [f"User: Question {number}?\n\nAssistant: {side}" for number in range(20) for side in ("good", "bad")]
    found = list(read_rows(comparisons(tmp_path / "x.jsonl", *lines[1:])))
    assert [item.row for item in found] == [None] * 20
    assert {item.reason for item in found[:-1]} == {"empty_prompt"}
    assert found[-1].reason == "comparison_without_second_line"


def test_a_damaged_line_of_comparisons_spoils_its_own_pair_only_and_blank_lines_none(tmp_path: Path) -> None:
    good = [json.dumps({"text": f"User: Q {n}?\n\nAssistant: {side}"}) for n in range(3) for side in ("a", "b")]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join([good[0], "", good[1], good[2], "{broken", good[4], good[5]]) + "\n")
    assert [(item.line, item.reason, item.row is not None) for item in read_rows(path)] == [
        (2, "blank_line", False),
        (1, "", True),
        (4, "invalid_json", False),
        (6, "", True),
    ]


FIELDS = sorted({name for schema in SCHEMAS for name in schema.known})
_KEYS = ["role", "content", "from", "value", "response", "answer", "rank", "overall_score"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(SCHEMAS), st.dictionaries(st.sampled_from(FIELDS), VALUES), st.data())
def test_whatever_stands_in_a_row_is_a_pair_or_has_a_reason(
    schema: PreferenceSchema, more: dict[str, Any], data: st.DataObject
) -> None:
    row = {**more, **{name: data.draw(VALUES) for name in schema.example}}
    try:
        pairs = schema.split(row, data.draw(st.sampled_from(["adjacent", "all"]))) if schema.split else [row]
        read = [schema.parse(pair) for pair in (row, *pairs)]
    except MalformedRowError as error:
        assert error.reason
    else:
        assert all(one.pair.prompt for one in read)
