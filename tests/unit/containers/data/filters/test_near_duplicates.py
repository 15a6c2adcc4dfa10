"""A row said twice in other words teaches twice; a row that only looks alike must not be lost."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from containers.data.filters.near_duplicates import near_duplicates, num_bands
from containers.data.filters.prompt_words import Prompts
from containers.data.filters.run_numbers import words_of
from containers.data.formats.columns import detect_schema
from containers.data.reader import read_rows
from containers.data.rows import PreferenceRow
from tests.unit.factories.data.word_runs import runs_of
from tests.unit.factories.filter_factory import Run, assert_every_row_is_counted, helpsteer3, write

WORDS = [f"word{number}" for number in range(500)]


def row(prompt: str, chosen: str, rejected: str) -> PreferenceRow:
    value = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    return detect_schema([value], file="x").parse(value)


def text(seed: int, length: int = 60) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=length))  # noqa: S311 - no secret


def prompts_of(rows: Sequence[PreferenceRow]) -> Prompts:
    return Prompts({row.prompt_id: row.pair.prompt for row in rows})


def found(*rows: PreferenceRow, similarity: float = 0.8) -> list[tuple[int, int]]:
    return [(item.position, item.of) for item in near_duplicates(rows, prompts_of(rows), similarity=similarity)]


def runs_by_part(row: PreferenceRow) -> dict[str, list[str]]:
    """Runs of words of prompt, chosen and rejected."""
    prompt = "\n".join(turn["content"] for turn in row.pair.prompt)
    texts = {"prompt": prompt, "chosen": row.pair.chosen, "rejected": row.pair.rejected}
    return {name: runs_of(words_of(text), 5) for name, text in texts.items()}


def similarity_of(left: dict[str, list[str]], right: dict[str, list[str]]) -> float:
    """How alike the least alike part of two rows is: what both have, over what either has."""
    parts = [(set(runs), set(right[name])) for name, runs in left.items()]
    return min(len(one & other) / len(one | other) if one or other else 1.0 for one, other in parts)


BASE = row(text(1), text(2), text(3))


def test_another_case_other_breaks_and_one_more_word_make_a_near_duplicate() -> None:
    assert found(BASE, row(text(1).upper(), text(2).replace(" ", "\n") + "!", f"Well, {text(3)}")) == [(1, 0)]


@pytest.mark.parametrize(
    "other",
    [
        row(text(1), text(3), text(2)),  # the sides exchanged: it says the opposite
        row(text(1), text(2), text(9)),  # the same question and answer against another one
        row(text(1, 400), "Yes.", "No."),
        row(text(9), text(2), text(3)),
    ],
)
def test_a_row_with_one_other_part_is_kept(other: PreferenceRow) -> None:
    assert found(BASE, other) == []


def test_another_short_answer_to_the_same_long_prompt_is_kept() -> None:
    assert found(row(text(1, 400), "Yes.", "No."), row(text(1, 400), "Maybe.", "No.")) == []


def test_what_one_row_says_in_its_system_turn_and_another_in_its_question_is_the_same() -> None:
    turns = [{"role": "system", "content": text(1)}, {"role": "user", "content": "Go on."}]
    value = {"prompt": turns, "chosen": text(2), "rejected": text(3)}
    with_system = detect_schema([value], file="x").parse(value)
    without = row(f"{text(1)} Go on.", text(2), text(3))
    assert found(with_system, without, similarity=0.9) == found(without, with_system, similarity=0.9) == [(1, 0)]


def test_what_is_dropped_stands_for_nothing() -> None:
    """A chain of small changes must not be eaten whole: the third is like the second, not like the first."""
    words = text(1, 100).split()
    changed = [" ".join(["new"] * count + words[count:]) for count in (0, 6, 12)]
    chain = [row(prompt, "Yes.", "No.") for prompt in changed]
    pairs = [(left, right) for left in range(3) for right in range(left)]
    alike = {pair: similarity_of(runs_by_part(chain[pair[0]]), runs_by_part(chain[pair[1]])) for pair in pairs}
    assert alike[1, 0] > 0.85 < alike[2, 1] and alike[2, 0] < 0.85
    assert found(*chain, similarity=0.85) == [(1, 0)]


@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.8, 0.9, 1.0])
def test_the_index_misses_hardly_a_pair_that_is_as_alike_as_asked(similarity: float) -> None:
    rows_per_band = 128 // num_bands(similarity)
    assert (1 - similarity**rows_per_band) ** num_bands(similarity) <= 1e-3


def test_the_similarity_is_that_of_the_least_alike_part_over_different_runs() -> None:
    """`a b c d e f` and `a b c d e g` share one of three runs; what a text says twice counts once."""
    pair = row("a b c d e f", "x", "a b a b a b a b a b"), row("a b c d e g", "x", "a b a b a b")
    assert [item.similarity for item in near_duplicates(pair, prompts_of(pair), similarity=0.3)] == [1 / 3]


@pytest.mark.waits
@pytest.mark.shared_data
def test_it_finds_just_what_comparing_every_pair_finds(shared_data: Path) -> None:
    items = read_rows(shared_data / "helpsteer3_schema_validation.jsonl.gz")
    rows = [item.row for item in items if item.row is not None]
    rows += [row(f"{one.pair.prompt[-1]['content']} Please.", one.pair.chosen, one.pair.rejected) for one in rows[::9]]
    parts = [runs_by_part(one) for one in rows]
    exact = []
    for place, left in enumerate(parts):
        taken = {position for position, _ in exact}
        alike = [other for other in range(place) if other not in taken and similarity_of(left, parts[other]) >= 0.7]
        if alike:
            exact.append((place, max(alike, key=lambda other: (similarity_of(left, parts[other]), -other))))
    assert len(exact) > 20
    assert found(*rows, similarity=0.7) == exact


@pytest.mark.parametrize(("choice", "dropped"), [("drop", 1), ("report", None), ("off", None)])
def test_every_near_duplicate_is_listed_with_the_row_that_it_repeats(
    tmp_path: Path, choice: str, dropped: int | None
) -> None:
    rows = [helpsteer3(number) for number in range(40)]
    rows.append({**rows[3], "response2": rows[3]["response2"].upper()})
    done = Run(
        tmp_path, {"train_data": write(tmp_path / "rows.jsonl", rows)}, near_duplicates=choice, similar_prompts="off"
    )
    assert done.dropped_by.get("near_duplicate") == dropped
    assert_every_row_is_counted(done.funnel)
    listed = done.lines("near_duplicates.jsonl")
    if choice == "off":
        assert listed is None and done.funnel.num_near_duplicates is None
    else:
        assert listed is not None
        assert [(line["line"], line["of_line"], line["similarity"]) for line in listed] == [(41, 4, 1.0)]
        assert {line["done"] for line in listed} == {"dropped" if dropped else "kept"}
        assert done.funnel.num_near_duplicates == 1


def test_of_a_training_and_a_validation_row_the_training_row_falls(tmp_path: Path) -> None:
    train = [helpsteer3(number) for number in range(40)]
    held_out = {**train[7], "context": [{"role": "user", "content": "What should I cook for 7 guests, this evening?"}]}
    inputs = {
        "train_data": write(tmp_path / "train.jsonl", train),
        "validation_data": write(tmp_path / "validation.jsonl", [held_out]),
    }
    done = Run(tmp_path, inputs)
    assert (done.dropped_by["near_duplicate"], done.funnel.validation_pairs) == (1, 1)
    (line,) = done.lines("near_duplicates.jsonl") or []
    assert (line["split"], line["line"]) == ("train", 8)
