"""Sums with known answers: right ones, and no held-out prompt among those to train on."""

import json
from pathlib import Path

import pytest

from flows.cli.main import main
from flows.demo.sums import write_sums


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_held_out_prompts_are_others_and_every_answer_is_the_sum(tmp_path: Path) -> None:
    write_sums(tmp_path, seed=1, count=200)
    train, judged = (rows(tmp_path / f"{part}prompts.jsonl") for part in ("", "held_out_"))
    assert (len(train), len(judged)) == (170, 30)
    assert not {row["question"] for row in train} & {row["question"] for row in judged}
    for row in (*train, *judged):
        one, other = [int(word) for word in row["question"].split() if word.isdigit()]
        assert row["answer"].endswith(f"#### {one + other}")
    for pair in rows(tmp_path / "pairs.jsonl"):
        assert pair["chosen"] != pair["rejected"]


def test_problems_have_the_answer_and_a_difficulty(tmp_path: Path) -> None:
    write_sums(tmp_path, count=200)
    problems = rows(tmp_path / "problems.jsonl")
    assert {row["difficulty"] for row in problems} >= {"1/8", "4/8"}
    assert all(row["answer"].isdigit() for row in problems)


def test_the_command_writes_them_and_refuses_labels_to_flip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo-data", "--sums", "--folder", str(tmp_path / "new")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 7
    assert main(["demo-data", "--sums", "--flip-labels"]) == 2
    assert "--flip-labels is about preferences" in capsys.readouterr().err
