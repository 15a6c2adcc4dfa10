"""Sets as their makers publish them must be read as they meant them; the columns are those of their cards."""

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from containers.contracts.configs.parts.row_filters import RankingPairs, RowReading
from containers.data.filters.flaws import first_flaw
from containers.data.formats.columns import SCHEMAS, detect_schema
from containers.data.formats.files import Line
from containers.data.reader import read_rows, rows_of_lines
from containers.harness.errors import BadDataError
from tests.unit.containers.data.formats.published_forms import (
    ALPACA,
    BATTLE,
    BINARIZED,
    BLUE,
    DISTILABEL_ORCA,
    DPO_MIX,
    FORMS,
    GPT_BLUE,
    GPT_RED,
    NECTAR,
    ORCA,
    PKU,
    PROMPT,
    RANKING,
    RED,
    SHAREGPT,
    SYSTEM,
    SYSTEM_TURN,
    USER,
    parse,
    reason_of,
    sides,
    unpaired,
    written,
)


@pytest.mark.parametrize(("name", "value"), FORMS.items())
def test_a_published_form_is_known_by_name_and_read_as_meant(name: str, value: Mapping[str, Any]) -> None:
    assert detect_schema([value], file="rows.jsonl").name == name
    pair = parse(value).pair
    assert (pair.chosen, pair.rejected) == ("Red.", "Blue.")
    assert next(turn for turn in pair.prompt if turn["role"] == "user")["content"].split() == PROMPT.split()
    assert (SYSTEM_TURN in pair.prompt) == (SYSTEM in json.dumps(value))


@pytest.mark.parametrize("system", [None, "", "  \n"])
def test_an_empty_system_prompt_is_none(system: str | None) -> None:
    assert list(parse({**ORCA, "system": system}).pair.prompt) == [USER]
    without = {name: item for name, item in ORCA.items() if name != "system"}
    assert parse({**ORCA, "system": system}).pair.pair_id == parse(without).pair.pair_id


def test_the_conversations_own_system_turn_stays_the_only_one() -> None:
    assert list(parse({**SHAREGPT, "system": "Another."}).pair.prompt) == [SYSTEM_TURN, USER]


@pytest.mark.parametrize("answer", ["Red.", [GPT_RED], RED, [RED], {"from": "chatgpt", "value": "Red."}])
def test_an_answer_of_sharegpt_may_be_text_or_a_turn(answer: object) -> None:
    assert parse({**SHAREGPT, "chosen": answer}).pair.chosen == "Red."


def test_several_turns_of_sharegpt_stay_turns() -> None:
    turns = [
        {"from": "human", "value": "Hello."},
        {"from": "gpt", "value": "Hello!"},
        {"from": "human", "value": PROMPT},
    ]
    assert [turn["role"] for turn in parse({**SHAREGPT, "conversations": turns}).pair.prompt] == [
        *("user", "assistant", "user")
    ]


def test_whole_conversations_beside_a_question_are_not_taken_for_an_answer() -> None:
    lists = parse({"question": "colour?", "chosen": [USER, RED], "rejected": [USER, BLUE]})
    texts = parse(
        {
            "question": "colour?",
            "chosen": f"\n\nHuman: {PROMPT}\n\nAssistant: Red.",
            "rejected": f"\n\nHuman: {PROMPT}\n\nAssistant: Blue.",
        }
    )
    for row in (lists, texts):
        assert (list(row.pair.prompt), row.pair.chosen, row.pair.rejected) == ([USER], "Red.", "Blue.")


@pytest.mark.parametrize(
    ("value", "strength"),
    [(BINARIZED, 1), (DPO_MIX, 2), ({**BINARIZED, "rejected_avg_rating": 5.0}, 0), (DISTILABEL_ORCA, 1),
     ({**DISTILABEL_ORCA, "status": "tie"}, 0), (ORCA, 1), ({**BATTLE, "winner": "tie (bothbad)"}, 0)],
)  # fmt: skip
def test_ratings_tell_the_strength_and_equal_answers_are_a_tie(value: Mapping[str, Any], strength: float) -> None:
    row = parse(value)
    assert (row.pair.margin, row.is_tie) == (strength, strength == 0)


def test_pku_rows_go_by_the_better_answer_unless_the_columns_name_the_safer_one(tmp_path: Path) -> None:
    path = written(tmp_path, PKU)
    assert sides(list(read_rows(path))) == [("Red.", "Blue.")]
    safer = RowReading(columns={"better_response_id": "safer_response_id"})
    assert sides(list(read_rows(path, safer))) == [("Blue.", "Red.")]


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_row_of_pku_without_the_label_is_a_tie(missing: float | None) -> None:
    assert first_flaw(parse({**PKU, "better_response_id": missing})) == "tie"
    assert parse({**PKU, "better_response_id": 1.0, "is_response_0_safe": None}).pair.chosen == "Red."


def test_every_real_row_in_pku_columns_is_read_or_counted(shared_data: Path) -> None:
    path = shared_data / "safety_pairs_pku_schema.jsonl.gz"
    better = list(read_rows(path))
    assert len(better) == 915 and all(read.row is not None for read in better)
    safer = list(read_rows(path, RowReading(columns={"better_response_id": "safer_response_id"})))
    counts = Counter("" if read.row is None else first_flaw(read.row) for read in safer)
    assert counts == {"": 570, "tie": 345}


def test_the_real_pairs_are_the_same_in_every_form(shared_data: Path, tmp_path: Path) -> None:
    found = [read.row for read in itertools.islice(read_rows(shared_data / "hh_helpful_test.jsonl.gz"), 200)]
    pairs = [row.pair for row in found if row is not None]
    assert len(pairs) == 200
    forms = {
        "orca": lambda p: {"question": p.prompt[0]["content"], "chosen": p.chosen, "rejected": p.rejected},
        "argilla": lambda p: {
            "instruction": p.prompt[0]["content"], "chosen_response": p.chosen, "rejected_response": p.rejected
        },
        "sharegpt": lambda p: {
            "conversations": [{"from": "human", "value": p.prompt[0]["content"]}],
            "chosen": {"from": "gpt", "value": p.chosen}, "rejected": {"from": "gpt", "value": p.rejected},
        },
        "pku": lambda p: {
            "prompt": p.prompt[0]["content"], "response_0": p.rejected, "response_1": p.chosen, "better_response_id": 1
        },
        "ranking": lambda p: {
            "prompt": p.prompt[0]["content"], "answers": [p.rejected, p.chosen], "scores": [1.0, 2.0]
        },
        "battle": lambda p: {
            "conversation_a": [*p.prompt, {"role": "assistant", "content": p.chosen}],
            "conversation_b": [*p.prompt, {"role": "assistant", "content": p.rejected}], "winner": "model_a",
        },
    }  # fmt: skip
    for name, form in forms.items():
        read = list(read_rows(written(tmp_path, *(form(pair) for pair in pairs))))
        assert [item.row and item.row.pair.pair_id for item in read] == [pair.pair_id for pair in pairs], name


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({**ORCA, "system": 3}, "system_not_text"),
        ({**ORCA, "question": None}, "prompt_not_text_or_turns"),
        ({**ORCA, "question": " "}, "empty_prompt"),
        ({**ORCA, "question": '[{"role": "user"}]'}, "prompt_is_encoded_json"),
        ({**ORCA, "chosen": None}, "response_not_text"),
        ({**ORCA, "rejected": ""}, "empty_response"),
        ({**ORCA, "chosen": '[{"role": "assistant", "content": "Red."}]'}, "response_is_encoded_json"),
        ({**ALPACA, "input": 5}, "input_not_text"),
        ({**ALPACA, "history": [["a", "b"]]}, "history_not_read"),
        ({**ALPACA, "instruction": "", "input": ""}, "empty_prompt"),
        ({**SHAREGPT, "conversations": None}, "conversations_not_turns"),
        ({**SHAREGPT, "conversations": []}, "empty_prompt"),
        ({**SHAREGPT, "conversations": ["a"]}, "conversations_not_turns"),
        ({**SHAREGPT, "conversations": json.dumps(SHAREGPT["conversations"])}, "conversations_are_encoded_json"),
        ({**SHAREGPT, "conversations": [{"from": "function_call", "value": "{}"}]}, "unknown_role"),
        ({**SHAREGPT, "conversations": [{"from": None, "value": "x"}]}, "unknown_role"),
        ({**SHAREGPT, "conversations": [{"from": "human", "value": None}]}, "turn_without_text"),
        ({**SHAREGPT, "conversations": [{"from": "human", "value": ""}]}, "empty_turn"),
        ({**SHAREGPT, "conversations": [{"from": "human", "value": "x"}, GPT_RED]}, "prompt_ends_without_user"),
        ({**SHAREGPT, "chosen": json.dumps(GPT_RED)}, "response_is_encoded_json"),
        ({**SHAREGPT, "chosen": {"from": "human", "value": "Red."}}, "completion_not_one_turn"),
        ({**SHAREGPT, "chosen": [GPT_RED, GPT_BLUE]}, "completion_not_one_turn"),
        ({**BINARIZED, "rejected_response": ["Blue."]}, "completion_not_one_turn"),
        ({**PKU, "better_response_id": 2}, "better_response_id_not_0_or_1"),
        ({**PKU, "better_response_id": True}, "better_response_id_not_0_or_1"),
        ({**PKU, "better_response_id": "1"}, "better_response_id_not_0_or_1"),
        ({**BATTLE, "winner": "model_c"}, "winner_unknown"),
        ({**BATTLE, "winner": None}, "winner_unknown"),
        ({**BATTLE, "conversation_a": [USER]}, "conversation_a_not_two_turns"),
        ({**BATTLE, "conversation_a": "x"}, "conversation_a_not_two_turns"),
        ({**BATTLE, "conversation_a": [USER, RED, USER, BLUE]}, "turns_differ_before_the_last"),
        ({**NECTAR, "answers": [{"answer": "Red.", "rank": 1}, "Blue."]}, "fewer_than_two_scores"),
    ],
)
def test_a_malformed_value_has_a_named_reason(value: Mapping[str, Any], reason: str) -> None:
    assert reason_of(value) == reason


def test_no_line_of_a_damaged_file_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for value in (ORCA, RANKING, NECTAR):
        path.write_text("\n".join([json.dumps(value), "", "{broken", "[1]", json.dumps({"other": 1})]) + "\n")
        reads = list(read_rows(path, RowReading(ranking_pairs="adjacent")))
        assert {read.line for read in reads} == {1, 2, 3, 4, 5}
        assert [read.reason for read in reads if read.line in (2, 3, 4)] == [
            *("blank_line", "invalid_json", "not_an_object")
        ]
        assert all(read.reason for read in reads if read.line == 5)


def test_the_reader_of_each_schema_has_a_published_example_here_or_beside() -> None:
    beside = {"HelpSteer3", "arena", "UltraFeedback", "unpaired (KTO)", "NeMo-Aligner comparisons"}
    assert {schema.name for schema in SCHEMAS} == beside | set(FORMS)


def test_values_that_json_does_not_know_and_deep_ones_crash_no_reader(tmp_path: Path) -> None:
    table = [unpaired(prompt, "x", True) for prompt in ("A?", "B?")]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{**row, "prompt": row["prompt"].encode()} for row in table]), path)
    with pytest.raises(BadDataError, match="no prompt has one labelled true"):
        list(read_rows(path))
    deep = "[" * 5000 + "]" * 5000
    pairs = [json.dumps(unpaired("A?", "x", label)) for label in (True, False)]
    for value, name in ((RANKING, "ranks"), (NECTAR, "answers"), (SHAREGPT, "conversations"), (BATTLE, "winner")):
        text = json.dumps({**value, name: "DEEP"}).replace('"DEEP"', deep)
        path = tmp_path / "deep.jsonl"
        path.write_text(f"{json.dumps(value)}\n{text}\n")
        reads = list(read_rows(path, RowReading(ranking_pairs="adjacent")))
        assert {read.line for read in reads} == {1, 2} and all(read.reason for read in reads if read.line == 2)
    path.write_text("\n".join([*pairs, json.dumps(unpaired("DEEP", "x", True)).replace('"DEEP"', deep)]) + "\n")
    assert [bool(read.reason) for read in read_rows(path)] == [False, True]


KEYS = ["role", "content", "from", "value", "answer", "rank", "true", "false"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150)
@given(st.sampled_from([*FORMS.values(), unpaired("A?", "x", True)]), st.data(), st.sampled_from(["adjacent", "all"]))
def test_every_line_is_a_row_or_has_a_reason_whatever_it_holds(
    value: Mapping[str, Any], data: st.DataObject, choice: RankingPairs
) -> None:
    changed = [{**value, data.draw(st.sampled_from(sorted(value))): data.draw(VALUES)} for _ in range(3)]
    lines = (Line(number, dict(row)) for number, row in enumerate([value, *changed, value], start=1))
    try:
        reads = list(rows_of_lines(lines, file="x", reading=RowReading(ranking_pairs=choice)))
    except BadDataError as error:
        assert "no prompt has one labelled true" in str(error)
        return
    assert all((read.row is None) == bool(read.reason) for read in reads)
    if "completion" not in value:
        assert {read.line for read in reads} == {1, 2, 3, 4, 5}
    else:
        assert sum(1 if read.row is None else 2 for read in reads) >= 5
