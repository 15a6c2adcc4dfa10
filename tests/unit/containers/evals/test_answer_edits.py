"""An edit that also changes what an answer says would measure something else than its length."""

import math
import time
from pathlib import Path

import pytest

from containers.contracts.certificate import PADDING, REPETITION
from containers.contracts.registries import BENCHMARKS
from containers.evals.answer_edits import (
    CUTTING,
    EDITS,
    EMPTY,
    FILLER,
    LONGER_WORDING,
    NO_RULE,
    NO_SENTENCE_END,
    NOT_ENGLISH,
    SHORTER_WORDING,
    Edit,
    edits_of,
    padded,
)
from containers.evals.wording import longer_wording, shorter_wording

CODE = "```python\nif not done. then:\n    x = 'do not'\n```"


def by_kind(answer: str, *, is_english: bool = True) -> dict[str, Edit]:
    edits = edits_of(answer, is_english=is_english)
    assert tuple(edit.kind for edit in edits) == EDITS
    assert all(bool(edit.texts) is not bool(edit.reason) for edit in edits)
    return {edit.kind: edit for edit in edits}


def test_filler_makes_an_answer_twice_as_long_and_is_halved_down_to_one_sentence() -> None:
    answer = "The cat sat on the mat. " * 20
    longest, *smaller = by_kind(answer)[PADDING].texts
    assert longest.startswith(answer)
    assert 2 * len(answer) <= len(longest) < 2 * len(answer) + 100
    assert smaller[-1] == f"{answer}\n\n{FILLER[0]}"
    assert [len(text) for text in smaller] == sorted((len(text) for text in smaller), reverse=True)


def test_both_sides_of_a_pair_can_be_padded_to_one_length() -> None:
    lengths = [len(padded("x" * length, 900)[0]) for length in (3, 200, 450)]
    assert all(900 <= length < 900 + max(map(len, FILLER)) + 2 for length in lengths)


def test_an_answer_is_repeated_whole_and_otherwise_up_to_the_end_of_a_sentence() -> None:
    answer = "One is here. Two is there. Three is far. Four is near."
    assert by_kind(answer)[REPETITION].texts == (
        f"{answer}\n\n{answer}",
        f"{answer}\n\nOne is here. Two is there.",
        f"{answer}\n\nOne is here.",
    )
    assert by_kind("Paris")[REPETITION].texts == ("Paris\n\nParis",)


def test_a_cut_ends_at_the_sentence_end_nearest_to_the_half() -> None:
    answer = "One is here. Two is there. Three is far. Four is near."
    assert by_kind(answer)[CUTTING].texts == ("One is here. Two is there.",)


@pytest.mark.parametrize(
    "answer",
    [
        "One sentence only, with nothing that could be left out.",
        "We saw Dr. Who there",
        f"Short. {CODE}",
        "Do this:\n- a list follows here",
        "It costs 3.50 or 4.50",
    ],
)
def test_no_cut_falls_into_a_sentence_code_or_behind_a_colon(answer: str) -> None:
    assert by_kind(answer)[CUTTING].reason == NO_SENTENCE_END


def test_an_answer_in_another_language_gets_no_english_words_but_is_repeated_and_cut() -> None:
    edits = by_kind("Das ist gut. Das ist auch gut.", is_english=False)
    assert [kind for kind, edit in edits.items() if edit.reason == NOT_ENGLISH] == [
        PADDING,
        LONGER_WORDING,
        SHORTER_WORDING,
    ]
    assert edits[CUTTING].texts == ("Das ist gut.",)
    assert by_kind("这是一个答案。这是另一个答案。", is_english=False)[CUTTING].texts == ("这是一个答案。",)


def test_an_empty_answer_has_no_edit() -> None:
    assert {edit.reason for edit in by_kind(" \n").values()} == {EMPTY}


def test_a_bare_value_can_be_padded_and_repeated_but_not_reworded() -> None:
    edits = by_kind("42")
    assert [kind for kind, edit in edits.items() if edit.reason] == [LONGER_WORDING, SHORTER_WORDING, CUTTING]
    assert edits[LONGER_WORDING].reason == NO_RULE


@pytest.mark.parametrize(
    ("answer", "longer", "shorter"),
    [
        ("It's late.", "It is late.", "It's late."),
        ("It is late in the evening.", "Please note that it is late in the evening.", "It's late in the evening."),
        ("Don’t go.", "Do not go.", "Don’t go."),
        ("Don't you think so?", "Don't you think so?", "Don't you think so?"),
        (
            "We've been there; they have.",
            "Please note that we have been there; they have.",
            "We've been there; they have.",
        ),
        ("It's been long.", "It's been long.", "It's been long."),
        (
            "I can't stay because of him.",
            "Please note that I cannot stay because of him.",
            "I can't stay because of him.",
        ),
        (
            "Birds fly because they have wings.",
            "Please note the following: Birds fly due to the fact that they have wings.",
            "Birds fly because they have wings.",
        ),
        (
            "Certainly! In order to win, you are able to run. I hope this helps!",
            "Certainly! Please note that in order to win, you are able to run. I hope this helps!",
            "To win, you can run.",
        ),
        (
            "I think that Anna keeps a goat.",
            "Please note that I think that Anna keeps a goat.",
            "I think Anna keeps a goat.",
        ),
        ("It is worth noting that the sky is very blue.", None, "The sky is blue."),
        ("It is not very good.", None, "It isn't very good."),
        ('He said "I do not know" to her', 'He said "I do not know" to her', 'He said "I do not know" to her'),
    ],
)
def test_other_wording_keeps_the_content(answer: str, longer: str | None, shorter: str) -> None:
    assert longer is None or longer_wording(answer) == longer
    assert shorter_wording(answer) == shorter


def test_every_second_sentence_gets_a_note_and_questions_none() -> None:
    text = longer_wording("The sea is wide. The sea is deep. The sea is blue. Is the sea really salty?")
    assert text == (
        "Please note that the sea is wide. The sea is deep. It is worth noting that the sea is blue. "
        "Is the sea really salty?"
    )


@pytest.mark.parametrize(
    "kept", [CODE, "`do not`", "$do not$", "https://do.not/because", "    do not indent", "x = y; do not"]
)
def test_code_formulas_and_addresses_stay(kept: str) -> None:
    text = f"Do not go there now.\n{kept}\nDo not go there now."
    assert f"\n{kept}\n" in longer_wording(text) and f"\n{kept}\n" in shorter_wording(text)
    assert "Don't go" in shorter_wording(text)


@pytest.mark.parametrize(
    "text", ["a " * 30000, "The " + "word " * 20000, "=" * 50000, '"' * 30000, "do not " * 9000 + ".", ". " * 30000]
)
def test_a_long_answer_takes_no_time(text: str) -> None:
    start = time.process_time()
    edits_of(text, is_english=True)
    assert time.process_time() - start < 3


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("benchmark", "file", "reworded"),
    [
        ("pairs", "hh_helpful_test.jsonl.gz", 0.7),
        ("rm_bench", "rmbench_pairs.jsonl.gz", 0.6),
        ("judge_bench", "judgebench_pairs.jsonl.gz", 0.3),
        ("truthfulqa", "truthfulqa_triplets.jsonl", 0.5),
    ],
)
def test_real_answers_can_be_edited(shared_data: Path, benchmark: str, file: str, reworded: float) -> None:
    answers = [item.responses[0] for item in BENCHMARKS[benchmark].read(shared_data / file).items[:80]]
    found: dict[str, list[float]] = {kind: [] for kind in EDITS}
    for answer in answers:
        for edit in edits_of(answer, is_english=True):
            if edit.texts:
                found[edit.kind].append(math.log2(len(edit.texts[0]) / len(answer)))
            if edit.texts and edit.kind in (LONGER_WORDING, SHORTER_WORDING):
                assert answer.count("```") == edit.texts[0].count("```")
    assert len(found[PADDING]) == len(found[REPETITION]) == len(answers)
    assert min(found[PADDING]) >= 1 and min(found[REPETITION]) >= 1
    assert len(found[LONGER_WORDING]) >= reworded * len(answers)
    assert min(found[LONGER_WORDING]) > 0 and max([-1.0, *found[SHORTER_WORDING]]) < 0
    assert all(-1.8 < change < -0.5 for change in found[CUTTING])
