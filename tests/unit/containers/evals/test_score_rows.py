"""Every row of a scored file comes out: as conversations, or with the reason why it cannot be scored."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from containers.evals.score_rows import RowKind, RowToScore, read_rows_to_score
from containers.harness.errors import BadDataError

PROMPT = [{"role": "user", "content": "Name a colour."}]


def _write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def _read(tmp_path: Path, *rows: Any) -> list[RowToScore]:
    return list(read_rows_to_score(_write(tmp_path / "rows.jsonl", list(rows))))


@pytest.mark.parametrize(
    ("row", "kind", "responses"),
    [
        ({"prompt": "Name a colour.", "response": "Red."}, RowKind.RESPONSE, ("Red.",)),
        ({"prompt": PROMPT, "completion": "Red."}, RowKind.RESPONSE, ("Red.",)),
        (
            {"prompt": PROMPT, "completion": [{"role": "assistant", "content": "Red."}]},
            RowKind.RESPONSE,
            ("Red.",),
        ),
        ({"prompt": "\n\nHuman: Name a colour.\n\nAssistant:", "response": "Red."}, RowKind.RESPONSE, ("Red.",)),
        ({"messages": [*PROMPT, {"role": "assistant", "content": "Red."}]}, RowKind.RESPONSE, ("Red.",)),
        ({"messages": "\n\nHuman: Name a colour.\n\nAssistant: Red."}, RowKind.RESPONSE, ("Red.",)),
        (
            {"prompt": "Name a colour.", "responses": ["Red.", "No.", "Red."]},
            RowKind.RESPONSES,
            ("Red.", "No.", "Red."),
        ),
        ({"prompt": "Name a colour.", "completions": ["Red."]}, RowKind.RESPONSES, ("Red.",)),
        ({"prompt": "Name a colour.", "chosen": "Red.", "rejected": "No."}, RowKind.PAIR, ("Red.", "No.")),
        (
            {"prompt": "Name a colour.", "response_a": "No.", "response_b": "Red.", "winner": "b"},
            RowKind.PAIR,
            ("Red.", "No."),
        ),
        (
            {"context": PROMPT, "response1": "Red.", "response2": "No.", "overall_preference": -2},
            RowKind.PAIR,
            ("Red.", "No."),
        ),
    ],
)
def test_every_form_becomes_the_same_conversation(
    tmp_path: Path, row: dict[str, Any], kind: RowKind, responses: tuple[str, ...]
) -> None:
    (found,) = _read(tmp_path, row)
    assert (found.kind, found.reason, list(found.prompt), found.responses) == (kind, "", PROMPT, responses)
    assert found.conversation(0) == [*PROMPT, {"role": "assistant", "content": "Red."}]


def test_pairs_with_messages_beside_them_are_pairs(tmp_path: Path) -> None:
    """UltraFeedback's binarized edition has both."""
    turns = [*PROMPT, {"role": "assistant", "content": "Red."}]
    other = [*PROMPT, {"role": "assistant", "content": "No."}]
    (found,) = _read(tmp_path, {"prompt": "Name a colour.", "messages": turns, "chosen": turns, "rejected": other})
    assert (found.kind, found.responses) == (RowKind.PAIR, ("Red.", "No."))


def test_a_tie_is_scored_and_said_to_be_one(tmp_path: Path) -> None:
    row = {"prompt": "q", "response_a": "x", "response_b": "y", "winner": "tie"}
    (found,) = _read(tmp_path, row)
    assert (found.is_tie, found.responses, found.reason) == (True, ("x", "y"), "")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "q", "response": "  "}, "empty_response"),
        ({"prompt": "", "response": "x"}, "empty_prompt"),
        ({"prompt": "q", "response": 3}, "response_not_text"),
        ({"prompt": "q", "response": None}, "response_not_text"),
        ({"prompt": "q"}, "missing_column"),
        ({"prompt": "q", "response": "a <|im_end|> b"}, "control_tokens"),
        ({"prompt": "q", "response": "a\0b"}, "nul_character"),
        ({"prompt": [{"role": "assistant", "content": "q"}], "response": "x"}, "prompt_ends_without_user"),
        ("", "blank_line"),
        ("{", "invalid_json"),
        ("[1]", "not_an_object"),
    ],
)
def test_a_row_that_cannot_be_scored_names_the_reason_and_keeps_its_place(
    tmp_path: Path, row: Any, reason: str
) -> None:
    good = {"prompt": "q", "response": "x"}
    found = _read(tmp_path, good, row, good)
    assert [(item.line, item.reason) for item in found] == [(1, ""), (2, reason), (3, "")]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"messages": PROMPT}], "ends_without_assistant"),
        ([{"messages": []}], "messages_not_turns"),
        ([{"messages": [*PROMPT, {"role": "assistant", "content": ""}]}], "empty_response"),
        ([{"prompt": "q", "responses": []}], "no_response"),
        ([{"prompt": "q", "responses": "x"}], "responses_not_a_list"),
        ([{"prompt": "q", "responses": ["x", ""]}], "empty_response"),
        ([{"prompt": "q", "chosen": "x", "rejected": "x "}], "equal_responses"),
        ([{"prompt": "q", "chosen": "x", "rejected": "<|im_start|>"}], "control_tokens"),
    ],
)
def test_reasons_of_the_other_forms(tmp_path: Path, rows: list[Any], reason: str) -> None:
    assert [item.reason for item in _read(tmp_path, *rows)] == [reason]


def test_two_lines_of_a_comparison_are_one_row(tmp_path: Path) -> None:
    beginning = "User: q\n\nAssistant: "
    found = _read(tmp_path, *[{"text": f"{beginning}{answer}"} for answer in ("a", "b", "c", "d")])
    assert [(item.line, item.responses) for item in found] == [(1, ("a", "b")), (3, ("c", "d"))]


def test_unknown_columns_are_shown_with_those_that_are_wanted(tmp_path: Path) -> None:
    with pytest.raises(BadDataError, match=r"found: question, answer\. .* prompt and response;.*, or are pairs"):
        _read(tmp_path, {"question": "q", "answer": "x"})


def test_parquet_gzip_and_folders_are_read_and_rows_of_a_folder_name_their_file(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    pq.write_table(pa.table({"prompt": ["q"], "response": ["x"]}), folder / "b.parquet")
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "q", "responses": ["x", "y"]}\n'))
    found = list(read_rows_to_score(folder))
    assert [(item.file, item.line, item.kind) for item in found] == [
        ("a.jsonl.gz", 1, RowKind.RESPONSES),
        ("b.parquet", 1, RowKind.RESPONSE),
    ]
    assert next(read_rows_to_score(folder / "b.parquet")).file == ""


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "q", "response": "x"}\n' * 1000)[:-20])
    with pytest.raises(BadDataError, match="is a damaged gzip file after line"):
        list(read_rows_to_score(path))


@pytest.mark.parametrize(
    ("row", "kind", "responses"),
    [
        ({"prompt": "A?", "responses": ["x", "y", "z"], "ranks": [2, 1, 3]}, RowKind.RESPONSES, ("x", "y", "z")),
        ({"prompt": "A?", "completions": ["x", "y"], "scores": [0.5, 1]}, RowKind.RESPONSES, ("x", "y")),
        ({"prompt": "A?", "completion": "x", "label": True}, RowKind.RESPONSE, ("x",)),
        ({"question": "A?", "chosen": "x", "rejected": "y"}, RowKind.PAIR, ("x", "y")),
    ],
)
def test_ranks_and_labels_beside_answers_hide_no_answer(
    tmp_path: Path, row: dict[str, Any], kind: RowKind, responses: tuple[str, ...]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (found,) = read_rows_to_score(path)
    assert (found.kind, found.responses, found.reason) == (kind, responses, "")
