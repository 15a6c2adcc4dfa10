"""Search for texts that repeat others, by runs of eight words that both have. Pure numpy.

A run of too many texts is of a template. Many texts with one long instruction and each its own short question look the
same as many short wordings around one long question: only their number tells them apart.
"""

from collections.abc import Iterator

import numpy as np

from containers.data.filters.prompt_words import PromptWords
from containers.data.filters.quotations import (
    Runs,
    are_outside,
    runs_of,
    whole_quotations,
    words_repeated_by_pair,
)
from containers.data.filters.run_numbers import Places, in_several_places

# Of few texts, a run of more than one text in ten is of a template, and never one of four or fewer.
_MOST_SHARE, _FEWEST = 0.1, 4
# Of the texts that share a run, each is compared with the shortest ones: they are the least that a text can repeat.
_COMPARED = 4


def most_texts_sharing(num_texts: int, *, limit: int) -> int:
    """The number of texts that may share a run which is not of a template, where rows are dropped for it.

    Example: with a limit of 100, 4 of 30 texts, 50 of 500, 100 of 20,000.
    """
    return max(_FEWEST, min(limit, int(_MOST_SHARE * num_texts)))


def repeating_texts(words: PromptWords, *, overlap: float, limit: int) -> Iterator[tuple[int, int]]:
    """Yield positions of two texts of which the second repeats the first: shared runs hold that share of its words.

    Runs of a template are left out, and so are their words; but a text that stands whole in
    another one is always found. Of texts that share a run, only pairs with one of the four shortest are compared.

    Args:
        words: of all texts, one after another.
        overlap: share of the words.
        limit: a run of more texts is of a template.
    """
    runs = runs_of(words)
    # Most runs occur only once: those need no sorting.
    is_several = in_several_places(runs.numbers)
    alone, runs = runs.take(~is_several), runs.take(is_several)
    # Of equal runs, those of shorter texts first.
    runs = runs.take(np.lexsort((runs.owners, words.lengths[runs.owners], runs.numbers)))
    if not runs.numbers.size:
        return
    # No other text quotes a text with a run of its own.
    has_own = np.bincount(alone.owners, minlength=words.lengths.size) > 0
    quoted, texts = whole_quotations(words, runs.take(~has_own[runs.owners]), texts=words, known=runs)
    is_other = quoted != texts
    yield from zip(quoted[is_other].tolist(), texts[is_other].tolist(), strict=True)
    groups, num_texts = _groups_of_equal(runs)
    is_own = are_outside(words.numbers.size, runs.starts[num_texts[groups] > limit])
    num_own = np.diff(np.append(0, np.cumsum(is_own))[words.ends], prepend=0)
    shared = (num_texts[groups] > 1) & (num_texts[groups] <= limit)
    one, other, start = _runs_with_other_texts(groups[shared], runs.take(shared))
    pairs, repeated = words_repeated_by_pair(one * words.lengths.size + other, start, is_own=is_own)
    first, second = pairs // words.lengths.size, pairs % words.lengths.size
    is_much = repeated >= np.maximum(overlap * num_own[first], 1)
    yield from zip(first[is_much].tolist(), second[is_much].tolist(), strict=True)


def _groups_of_equal(runs: Runs) -> tuple[Places, Places]:
    """Return the group of equal runs of each sorted run, and the number of texts of each group."""
    is_new = np.append(True, runs.numbers[1:] != runs.numbers[:-1])
    is_new_text = is_new | np.append(True, np.diff(runs.owners) != 0)
    groups = np.cumsum(is_new) - 1
    return groups, np.bincount(groups[is_new_text])


def _runs_with_other_texts(groups: Places, runs: Runs) -> tuple[Places, Places, Places]:
    """Return runs once for other texts of their group: its own text, the other one, and where it begins.

    A pair has one of the first texts of the group, or both.
    """
    is_new_text = np.append(True, (np.diff(groups) != 0) | (np.diff(runs.owners) != 0))[: groups.size]
    texts, groups_of_texts = runs.owners[is_new_text], groups[is_new_text]
    begins = np.searchsorted(groups_of_texts, groups)
    sizes = np.searchsorted(groups_of_texts, groups, side="right") - begins
    rank = np.cumsum(is_new_text) - 1 - begins
    counts = np.where(rank < _COMPARED, sizes, np.minimum(sizes, _COMPARED))
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    other = texts[np.repeat(begins, counts) + place]
    one = np.repeat(runs.owners, counts)
    is_other = one != other
    return one[is_other], other[is_other], np.repeat(runs.starts, counts)[is_other]
