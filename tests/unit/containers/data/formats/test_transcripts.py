"""A conversation that becomes one text and comes back must be the same conversation."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.contracts.spec import StageInput
from containers.data.formats.schemas import parse_trl
from containers.data.formats.transcripts import comparison_text, turns_of_text
from containers.data.prompts.reading import PROMPTS
from containers.data.reader import read_rows
from containers.data.tables import write_comparisons, write_prompt_texts
from tests.unit.factories.data.pair_rows import read_pairs

WORDS = st.text(st.sampled_from("ab:\n UserAssistant"), min_size=1).map(str.strip).filter(bool)


@given(st.lists(WORDS, min_size=2, max_size=6).filter(lambda texts: len(texts) % 2 == 0))
def test_what_is_written_is_read_back_or_not_written(texts: list[str]) -> None:
    turns = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]
    written = comparison_text(turns[:-1], texts[-1])
    assert written is None or turns_of_text(written) == turns


def test_a_text_with_the_mark_of_a_turn_and_a_system_turn_are_not_written() -> None:
    user = {"role": "user", "content": "Write a dialogue."}
    assert comparison_text([user], "Well:\n\nUser: hello") is None
    assert comparison_text([{"role": "system", "content": "Be kind."}, user], "Well.") is None
    assert (
        comparison_text([user], "Ask the User: nicely.")
        == "User: Write a dialogue.\n\nAssistant: Ask the User: nicely."
    )


@pytest.mark.parametrize("text", ["Human nature.", "The User: form", "Red.", "", "\n\nAssistant: Red."])
def test_plain_text_is_no_transcript(text: str) -> None:
    assert turns_of_text(text) is None


@pytest.mark.shared_data
def test_real_dialogues_written_as_hh_rlhf_writes_them_give_the_same_pairs(tmp_path: Path, shared_data: Path) -> None:
    """hh_harmless holds parsed dialogues of HH-RLHF; put together again, they must be parsed the same."""
    path = tmp_path / "hh.jsonl"
    with gzip.open(shared_data / "hh_harmless.jsonl.gz", "rt") as rows, open(path, "w") as out:
        for line in rows:
            row = json.loads(line)
            texts = {
                side: "".join(
                    f"\n\n{'Human' if turn['role'] == 'user' else 'Assistant'}: {turn['content']}"
                    for turn in row["prompt"] + row[side]
                )
                for side in ("chosen", "rejected")
            }
            out.write(json.dumps(texts) + "\n")
    parsed = read_pairs(shared_data / "hh_harmless.jsonl.gz")
    again = read_pairs(path)
    assert len(parsed.pairs) == 1000
    assert [pair.pair_id for pair in again.pairs] == [pair.pair_id for pair in parsed.pairs]


@pytest.mark.shared_data
def test_real_pairs_written_for_nemo_aligner_come_back_as_they_were(tmp_path: Path, shared_data: Path) -> None:
    rows = [item.row for item in read_rows(shared_data / "hh_harmless.jsonl.gz") if item.row is not None]
    left_out = write_comparisons(tmp_path / "test_comparisons.jsonl", rows)
    back = read_pairs(tmp_path / "test_comparisons.jsonl").pairs
    assert (left_out, len(back)) == (0, 1000)
    assert [pair.pair_id for pair in back] == [row.pair.pair_id for row in rows]


@pytest.mark.shared_data
def test_real_prompts_written_for_nemo_aligner_come_back_as_prompts(tmp_path: Path, shared_data: Path) -> None:
    rows = [item.row for item in read_rows(shared_data / "hh_harmless.jsonl.gz") if item.row is not None]
    path = tmp_path / "train_prompts.jsonl"
    count, left_out = write_prompt_texts(path, [*rows, rows[0]])
    source = PROMPTS.source(StageInput(name="train_data", path=str(path), digest="x"), split="train")
    assert (count, left_out, source.num_malformed) == (len(source.rows), 0, 0)
    assert [placed.row.prompt_id for placed in source.rows] == list(dict.fromkeys(row.prompt_id for row in rows))


def test_a_prompt_that_the_form_cannot_hold_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = [
        parse_trl({"prompt": prompt, "chosen": "Red.", "rejected": "No."})
        for prompt in (
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A colour?"}],
            "Name one.\n\nUser: and another",
            "Name one.",
        )
    ]
    assert write_prompt_texts(tmp_path / "p.jsonl", rows) == (3, 2)
    assert (tmp_path / "p.jsonl").read_text() == '{"text": "User: Name one.\\n\\nAssistant:"}\n'
