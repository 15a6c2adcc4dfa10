"""Prompts with their words as numbers, made once for every step that compares prompts. Pure numpy.

All turns but the system's count.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from containers.data.filters.run_numbers import Flags, Numbers, Places, word_and_letter_numbers

Turns = Sequence[Mapping[str, str]]

# The beginning of a conversation is its first turns, until they have this many words together.
BEGINNING_WORDS = 8
# A text repeats another one by runs of so many words.
RUN_WORDS = 8
_PROMPTS_AT_ONCE = 1000


class PromptWords(NamedTuple):
    """The words of some prompts; all places are indices of `numbers`.

    Each prompt has a begin, an end, the begin of its last turn, and the end of its beginning (`BEGINNING_WORDS`), which
    is the prompt's end if it has fewer words.
    """

    numbers: Numbers
    begins: Places
    ends: Places
    last_begins: Places
    beginning_ends: Places

    @property
    def lengths(self) -> Places:
        """Number of words of each prompt."""
        return self.ends - self.begins

    def part(self, begin: int, end: int) -> "PromptWords":
        """The words of the prompts from one position up to another."""
        first = int(self.begins[begin]) if begin < self.begins.size else 0
        last = int(self.ends[end - 1]) if begin < end else first
        return PromptWords(self.numbers[first:last], *(places[begin:end] - first for places in self[1:]))

    def only(self, is_kept: Flags) -> "PromptWords":
        """The words of some of the prompts."""
        numbers = self.numbers[np.repeat(is_kept, self.lengths)]
        begins, lengths = self.begins[is_kept], self.lengths[is_kept]
        moved = np.cumsum(lengths) - lengths - begins
        return PromptWords(numbers, *(places[is_kept] + moved for places in self[1:]))


class Prompts:
    """Different prompts under their ids, in order.

    Attributes:
        words: as numbers.
        letters: a number for each prompt, equal for prompts with the same letters in their words (`run_numbers`).
    """

    def __init__(self, turns: Mapping[str, Turns], *, made: "tuple[PromptWords, Numbers] | None" = None) -> None:
        self.turns = turns
        self.words, self.letters = made or _words_and_letters(turns.values())

    def only(self, ids: Collection[str]) -> "Prompts":
        """Return the prompts that have these ids; their words are not computed again."""
        if len(ids) == len(self.turns):
            return self
        is_kept = np.array([prompt_id in ids for prompt_id in self.turns], dtype=np.bool_)
        turns = {prompt_id: prompt for prompt_id, prompt in self.turns.items() if prompt_id in ids}
        return Prompts(turns, made=(self.words.only(is_kept), self.letters[is_kept]))

    def batches(self) -> Iterator[tuple[int, PromptWords]]:
        """Yield the words of some prompts at once, each time with the position of the first; of none, one batch."""
        for begin in range(0, max(len(self.turns), 1), _PROMPTS_AT_ONCE):
            yield begin, self.words.part(begin, min(begin + _PROMPTS_AT_ONCE, len(self.turns)))


def _words_and_letters(prompts: Iterable[Turns]) -> tuple[PromptWords, Numbers]:
    turns = [contents_of(prompt) for prompt in prompts]
    numbers, words_of_turns, letters_of_turns = word_and_letter_numbers([text for texts in turns for text in texts])
    ends_of_turns = np.append(0, np.cumsum(words_of_turns))
    last_turns = np.cumsum([len(texts) for texts in turns], dtype=np.int64)
    ends = ends_of_turns[last_turns]
    begins = np.append(0, ends[:-1])[: ends.size]
    last_begins = np.maximum(ends_of_turns[np.maximum(last_turns - 1, 0)], begins)
    # The end of the first turn after which the prompt has enough words.
    enough = np.searchsorted(ends_of_turns, np.minimum(begins + BEGINNING_WORDS, ends))
    words = PromptWords(numbers, begins, ends, last_begins, ends_of_turns[enough])
    letters = np.append(np.uint64(0), np.cumsum(letters_of_turns))[last_turns]
    return words, np.diff(letters, prepend=np.uint64(0))


def contents_of(prompt: Turns) -> list[str]:
    """The texts of all turns but the system's."""
    return [turn["content"] for turn in prompt if turn["role"] != "system"]


def text_of_turns(prompt: Turns) -> str:
    """The texts of all turns but the system's as one."""
    return "\n".join(contents_of(prompt))
