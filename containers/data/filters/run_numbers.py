"""Words and runs of words as numbers, for many texts at once: ten times as fast as `words_of`. Pure numpy.

A word or run becomes 64 bits; two different ones are equal with probability 2^-64. None is kept as a string.
"""

import functools
import re
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

# Chinese and Japanese are written without spaces: there each character counts as a word.
IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_ASCII_WORD = re.compile(r"\w+", re.ASCII)
_WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\W{IDEOGRAPHS}]+")
Numbers = NDArray[np.uint64]
Places = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Odd, so that multiplication by it modulo 2^64 loses nothing and can be inverted.
_FACTOR = 0x9E3779B97F4A7C15
# A character's number is its code plus one, 0 between words; the highest bits mark special characters.
_IDEOGRAPH, _FOLDS_INTO_SEVERAL = 1 << 62, 1 << 63
_CODE = (1 << 32) - 1
# Letters whose codes differ by a multiple of this have the same weight in sums of letters.
_LETTER_WEIGHTS = 2**10
# Arrays of this size stay in the processor's second-level cache.
_CHARACTERS_AT_ONCE = 2**15
_WORDS_AT_ONCE = 2**14
# Slots in `in_several_places`: at least this many for each run, and at most 2^26, which take 320 MiB.
_PLACES_PER_RUN = 4
_FEWEST_BITS, _MOST_BITS = 10, 26


def words_of(text: str) -> list[str]:
    """The words in order, folded to one case."""
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text.casefold())


def word_numbers(texts: Sequence[str]) -> tuple[Numbers, Places]:
    """The number of every word of all texts in order, and how many words each text has.

    The words are those of `words_of`.
    """
    numbers, lengths = zip(*(_word_numbers(*_letters(batch)) for batch in _batches(texts)), strict=True)
    return np.concatenate(numbers), np.concatenate(lengths)


def word_and_letter_numbers(texts: Sequence[str]) -> tuple[Numbers, Places, Numbers]:
    """Return `word_numbers`, and a number for each text that is equal for the same letters, however divided.

    Each other letter changes the number with a probability of about 1 - 2^-10 only, so callers must compare the texts.
    """
    found: list[tuple[Numbers, Places, Numbers]] = []
    for batch in _batches(texts):
        letters, ends = _letters(batch)
        weights = _powers(_FACTOR, _LETTER_WEIGHTS)[letters & np.uint64(_LETTER_WEIGHTS - 1)]
        weights[letters == 0] = 0
        sums = np.append(np.uint64(0), np.cumsum(weights))
        found.append((*_word_numbers(letters, ends), sums[ends] - sums[np.append(0, ends[:-1] + 1)]))
    numbers, lengths, sums_of_letters = zip(*found, strict=True)
    return np.concatenate(numbers), np.concatenate(lengths), np.concatenate(sums_of_letters)


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the texts in order, in batches whose arrays stay in the cache; the last one may be empty."""
    begin, size = 0, 0
    for end, text in enumerate(texts, start=1):
        size += len(text)
        if size >= _CHARACTERS_AT_ONCE:
            yield texts[begin:end]
            begin, size = end, 0
    yield texts[begin:]


def _letters(texts: Sequence[str]) -> tuple[Numbers, Places]:
    """Numbers of all characters, folded to one case, with a separator between two texts; and the end of each text."""
    letters = _number_of_characters()[_codes(texts)]
    if letters.max(initial=0) >= _FOLDS_INTO_SEVERAL:
        texts = [text.casefold() for text in texts]
        letters = _number_of_characters()[_codes(texts)]
    return letters, np.cumsum([len(text) + 1 for text in texts], dtype=np.int64) - 1


def _codes(texts: Sequence[str]) -> NDArray[np.uint32]:
    return np.frombuffer("\n".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _word_numbers(letters: Numbers, ends_of_texts: Places) -> tuple[Numbers, Places]:
    begins, ends = _places_of_words(letters)
    if letters.max(initial=0) >= _IDEOGRAPH:
        letters = letters & np.uint64(_CODE)
    numbers = span_numbers(letters, begins, ends)
    last_word = np.searchsorted(begins, ends_of_texts)
    return numbers, np.diff(last_word, prepend=0)


def _places_of_words(letters: Numbers) -> tuple[Places, Places]:
    """Return where each word begins and ends; each ideograph is a word."""
    is_word = np.zeros(letters.size + 2, dtype=np.bool_)
    np.not_equal(letters, 0, out=is_word[1:-1])
    changes = is_word[1:] != is_word[:-1]
    if letters.max(initial=0) < _IDEOGRAPH:
        edges = np.flatnonzero(changes)
        return edges[::2], edges[1::2]
    parts = changes.copy()
    is_ideograph = letters >= _IDEOGRAPH
    parts[:-1] |= is_ideograph
    parts[1:] |= is_ideograph
    return np.flatnonzero(parts & is_word[1:]), np.flatnonzero(parts & is_word[:-1])


def span_numbers(numbers: Numbers, begins: Places, ends: Places) -> Numbers:
    """The number of each span of numbers (letters, words) from its begin up to its end; equal spans have equal ones.

    It is the sum of its numbers, each times the factor to the power of its place in the span, mixed. Powers count from
    the first of all numbers; an inverse power then moves the span's first number to place 0.
    """
    powers, backwards = _powers(_FACTOR, numbers.size), _powers(pow(_FACTOR, -1, 2**64), numbers.size + 1)
    sums = np.zeros(numbers.size + 1, dtype=np.uint64)
    np.cumsum(numbers * powers, out=sums[1:])
    found = sums[ends]
    found -= sums[begins]
    found *= backwards[begins]
    return _mixed(found)


def run_numbers(words: Numbers, lengths: Places, *, length: int) -> tuple[Numbers, Places, Places]:
    """The number of each run, the place of its first word among all words, and the position of its text.

    Args:
        words: of all texts, as `word_numbers` gives them.
        lengths: words of each text; one with fewer words than a run has no run.
        length: words of a run.
    """
    counts = np.maximum(lengths - length + 1, 0)
    size = max(words.size - length + 1, 0)
    runs = np.empty(size, dtype=np.uint64)
    for begin in range(0, size, _WORDS_AT_ONCE):
        end = min(begin + _WORDS_AT_ONCE, size)
        batch = words[begin:end].copy()
        for place in range(1, length):
            batch *= np.uint64(_FACTOR)
            batch += words[begin + place : end + place]
        runs[begin:end] = _mixed(batch)
    is_start = np.ones(words.size, dtype=np.bool_)
    ends = np.cumsum(lengths)
    for place in range(1, length):
        # For a text with fewer words, these places are in an earlier text, where they are no starts either.
        is_start[ends[ends >= place] - place] = False
    starts = np.flatnonzero(is_start[:size])
    return runs[starts], starts, np.repeat(np.arange(lengths.size), counts)


def with_at_least(words: Numbers, lengths: Places, *, length: int) -> tuple[Numbers, Places]:
    """Return the same texts, those with fewer words than `length` padded with a number of no word."""
    filled = np.maximum(lengths, length)
    if words.size == filled.sum():
        return words, lengths
    shift = (np.cumsum(filled) - filled) - (np.cumsum(lengths) - lengths)
    numbers = np.zeros(int(filled.sum()), dtype=np.uint64)
    numbers[np.arange(words.size) + np.repeat(shift, lengths)] = words
    return numbers, filled


def in_several_places(numbers: Numbers) -> Flags:
    """Whether each number occurs several times in the array: always True if it does, rarely True if it does not.

    So a number with False occurs only once. This takes a fifth of the time of sorting.
    """
    bits = min(max((_PLACES_PER_RUN * numbers.size).bit_length(), _FEWEST_BITS), _MOST_BITS)
    slots = (numbers >> np.uint64(64 - bits)).astype(np.int64)
    order = np.arange(numbers.size, dtype=np.uint32)
    last = np.empty(1 << bits, dtype=np.uint32)
    last[slots] = order
    is_several = np.zeros(1 << bits, dtype=np.bool_)
    is_several[slots[last[slots] != order]] = True
    flags: Flags = is_several[slots]
    return flags


def _mixed(numbers: Numbers) -> Numbers:
    """Spread every bit of a number over every bit of the result (the finalizer of splitmix64)."""
    mixed = numbers ^ (numbers >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _powers(base: int, count: int) -> Numbers:
    """The first powers of the base modulo 2^64, from 1 on."""
    most = 2 * _CHARACTERS_AT_ONCE
    while most < count:
        most *= 2
    return _powers_up_to(base, most)[:count]


@functools.lru_cache(maxsize=4)
def _powers_up_to(base: int, count: int) -> Numbers:
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    powers: Numbers = np.multiply.accumulate(factors)
    return powers


@functools.cache
def _number_of_characters() -> Numbers:
    """The number of every character, folded to one case."""
    every = np.arange(sys.maxunicode + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    codes = np.arange(1, len(every) + 1, dtype=np.uint64)
    several = []
    for begin in range(0, len(every), 256):
        block = every[begin : begin + 256]
        if block != block.casefold():
            folded = [(code, character.casefold()) for code, character in enumerate(block, start=begin)]
            codes[begin : begin + 256] = [ord(text[0]) + 1 for _, text in folded]
            several += [code for code, text in folded if len(text) > 1]
    is_letter = np.zeros(len(every), dtype=np.bool_)
    for match in re.finditer(r"\w+", every):
        is_letter[match.start() : match.end()] = True
    # A character counts as the one that it is folded to.
    numbers: Numbers = np.where(is_letter[codes.astype(np.int64) - 1], codes, np.uint64(0))
    for match in re.finditer(rf"[{IDEOGRAPHS}]+", every):
        numbers[match.start() : match.end()] = codes[match.start() : match.end()] | np.uint64(_IDEOGRAPH)
    numbers[several] = _FOLDS_INTO_SEVERAL
    return numbers
