"""Search for texts that stand whole in other texts: all their words in order, with none between them. Pure numpy."""

from typing import NamedTuple

import numpy as np

from containers.data.filters.prompt_words import RUN_WORDS, PromptWords
from containers.data.filters.run_numbers import Flags, Numbers, Places, run_numbers


class Runs(NamedTuple):
    """Runs of eight words of some texts: each with its number, the place of its first word, and its text's position."""

    numbers: Numbers
    starts: Places
    owners: Places

    def take(self, places: Places | Flags) -> "Runs":
        """The runs at these places."""
        return Runs(self.numbers[places], self.starts[places], self.owners[places])

    def by_number(self) -> "Runs":
        """The same, equal ones together, in the order of their texts."""
        return self.take(np.argsort(self.numbers, kind="stable"))


def runs_of(words: PromptWords) -> Runs:
    """All runs of the texts, in order."""
    return Runs(*run_numbers(words.numbers, words.lengths, length=RUN_WORDS))


def whole_quotations(quoted: PromptWords, runs: Runs, *, texts: PromptWords, known: Runs) -> tuple[Places, Places]:
    """Positions of the quoted text and of the text that quotes it, for every such place; also of equal texts.

    A text of eight words or more is looked up by its rarest run, so what many texts share costs nothing. Then its words
    are compared one by one.

    Args:
        runs: of the quoted texts.
        texts: those that may hold a quoted text.
        known: their runs, sorted by number; those that no quoted text has may be missing.
    """
    counts = np.searchsorted(known.numbers, runs.numbers, side="right") - np.searchsorted(known.numbers, runs.numbers)
    order = np.lexsort((counts, runs.owners))
    rarest = order[np.flatnonzero(np.diff(runs.owners[order], prepend=-1))]
    found = joined(runs.numbers[rarest], known.numbers)
    run, place = rarest[found[0]], found[1]
    one, other = runs.owners[run], known.owners[place]
    begins = known.starts[place] - (runs.starts[run] - quoted.begins[one])
    lengths = quoted.lengths[one]
    fits = (begins >= texts.begins[other]) & (begins + lengths <= texts.ends[other])
    one, other, begins, lengths = one[fits], other[fits], begins[fits], lengths[fits]
    step = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    here, there = np.repeat(quoted.begins[one], lengths) + step, np.repeat(begins, lengths) + step
    is_same = quoted.numbers[here] == texts.numbers[there]
    is_whole = np.bincount(np.repeat(np.arange(one.size), lengths)[~is_same], minlength=one.size) == 0
    return one[is_whole], other[is_whole]


def joined(numbers: Numbers, sorted_numbers: Numbers) -> tuple[Places, Places]:
    """Places of equal numbers, in the first array and in the second, which is sorted: each pair of places once."""
    begins = np.searchsorted(sorted_numbers, numbers)
    counts = np.searchsorted(sorted_numbers, numbers, side="right") - begins
    step = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(np.arange(numbers.size), counts), np.repeat(begins, counts) + step


def are_outside(num_words: int, starts: Places) -> Flags:
    """Whether each word is in none of the runs that begin at one of `starts`, places among the words."""
    change = np.zeros(num_words + 1, dtype=np.int64)
    change[starts] += 1
    # Runs overlap, but no two of them end at the same place.
    change[starts + RUN_WORDS] -= 1
    flags: Flags = np.cumsum(change[:-1]) == 0
    return flags


def words_repeated_by_pair(pairs: Places, starts: Places, *, is_own: Flags) -> tuple[Places, Places]:
    """The different pairs, sorted, and how many own words of the pair's first text the runs of each hold.

    Args:
        pairs: the pair of texts that each run is of.
        starts: place of the run's first word in the pair's first text; several runs may have the same.
        is_own: whether each word of the first texts counts.
    """
    order = np.lexsort((starts, pairs))
    pairs, starts = pairs[order], starts[order]
    is_last = np.append(pairs[1:] != pairs[:-1], True)[: pairs.size]
    # Each run holds its words as far as the next run of the pair.
    lengths = np.where(is_last, RUN_WORDS, np.minimum(np.diff(starts, append=0), RUN_WORDS))
    before = np.append(0, np.cumsum(is_own))
    totals = np.append(0, np.cumsum(before[starts + lengths] - before[starts]))
    ends = np.flatnonzero(is_last) + 1
    return pairs[is_last], np.diff(totals[ends], prepend=0)
