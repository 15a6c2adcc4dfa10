"""Words counted in numpy must be the words that every other rule speaks of."""

from pathlib import Path

import numpy as np
import pytest

from containers.data.filters.run_numbers import (
    in_several_places,
    run_numbers,
    span_numbers,
    with_at_least,
    word_and_letter_numbers,
    word_numbers,
    words_of,
)
from containers.data.reader import read_rows
from tests.unit.factories.data.word_runs import runs_of

TEXTS = (
    "Hello, hello world!",
    "",
    "snake_case and 3.14; naïve Straße STRASSE",
    "日本語の文 and 12 words",
    "👩‍🔬 l’été\u00a0— \u2028 x",
    " \n ",
    "é e\u0301 \ud800",
)


def assert_same_partition(left: list[object], right: list[str]) -> None:
    """Two lists in which the same places are equal."""
    assert len(left) == len(right)
    assert len(set(left)) == len(set(right)) == len(set(zip(left, right, strict=True)))


def assert_as_by_hand(texts: list[str], *, length: int) -> None:
    """Words and runs are counted as `runs_of` counts them, and are equal where its strings are."""
    by_hand = [words_of(text) for text in texts]
    words, lengths = word_numbers(texts)
    assert lengths.tolist() == [len(text) for text in by_hand]
    assert_same_partition(words.tolist(), [word for text in by_hand for word in text])
    runs, _, owners = run_numbers(words, lengths, length=length)
    with_runs = [runs_of(text, length) if len(text) >= length else [] for text in by_hand]
    assert_same_partition(runs.tolist(), [run for text in with_runs for run in text])
    assert np.bincount(owners, minlength=len(texts)).tolist() == [len(text) for text in with_runs]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_words_and_runs_are_those_of_the_strings_in_every_script(length: int) -> None:
    assert_as_by_hand(list(TEXTS), length=length)


def test_every_character_is_in_a_word_between_words_or_a_word_as_the_strings_have_it() -> None:
    characters = [chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    assert_as_by_hand([" ".join(f"a{one}b" for one in characters[begin::64]) for begin in range(64)], length=1)


def test_words_are_the_same_whatever_texts_are_counted_with_them() -> None:
    """What a text gives must depend neither on its neighbours nor on where a batch ends."""
    long = "ein Wort STRASSE " * 9000
    together, lengths = word_numbers([*TEXTS, long, *TEXTS])
    alone = [word_numbers([text])[0].tolist() for text in (*TEXTS, long, *TEXTS)]
    assert together.tolist() == [number for numbers in alone for number in numbers]
    assert lengths.tolist() == [len(numbers) for numbers in alone]


def test_spans_are_equal_where_their_words_are() -> None:
    words, _ = word_numbers(["one two three", "two three one two"])
    begins, ends = np.array([0, 5, 1, 3, 0, 2]), np.array([2, 7, 3, 5, 1, 2])
    numbers = span_numbers(words, begins, ends).tolist()
    assert numbers[0] == numbers[1]
    assert numbers[2] == numbers[3]
    assert len(set(numbers)) == 4


def test_letters_are_the_same_in_any_division_of_words_and_in_either_case() -> None:
    texts = ["any one!", "ANYONE", "a nyo-ne", "Straße", "STRASSE", "?!", ""]
    words, lengths, letters = word_and_letter_numbers(texts)
    assert letters[0] == letters[1] == letters[2] != letters[3] == letters[4]
    assert letters[5:].tolist() == [0, 0]
    assert [words.tolist(), lengths.tolist()] == [numbers.tolist() for numbers in word_numbers(texts)]
    assert [numbers.size for numbers in word_and_letter_numbers([])] == [0, 0, 0]


def test_what_stands_in_several_places_is_always_told() -> None:
    numbers = word_numbers([" ".join(str(number % 700) for number in range(1000))])[0]
    flags = in_several_places(numbers)
    by_hand = np.array([(numbers == number).sum() > 1 for number in numbers])
    assert flags[by_hand].all()
    assert (~flags[~by_hand]).mean() > 0.7
    assert in_several_places(numbers[:0]).size == 0


def test_no_text_has_no_word() -> None:
    words, lengths = word_numbers([])
    assert (words.size, lengths.size) == (0, 0)
    assert run_numbers(words, lengths, length=5)[0].size == 0


def test_short_texts_are_filled_up_to_one_run_that_only_equal_texts_share() -> None:
    words, lengths = with_at_least(*word_numbers(["a b", "b a", "", "A, b!", "a b c d e f"]), length=5)
    assert lengths.tolist() == [5, 5, 5, 5, 6]
    runs, _, owners = run_numbers(words, lengths, length=5)
    first = {owner: run for run, owner in zip(runs.tolist()[::-1], owners.tolist()[::-1], strict=True)}
    assert first[0] == first[3]
    assert len({first[place] for place in (0, 1, 2, 4)}) == 4


@pytest.mark.shared_data
def test_words_and_runs_of_real_texts_are_those_of_the_strings(shared_data: Path) -> None:
    for file in ("helpsteer3_schema_validation.jsonl.gz", "hh_harmless.jsonl.gz"):
        rows = [item.row for item in read_rows(shared_data / file) if item.row is not None]
        assert_as_by_hand([text for row in rows for text in (row.pair.chosen, row.pair.rejected)], length=5)
