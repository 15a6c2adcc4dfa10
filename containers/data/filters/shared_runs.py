"""Which texts repeat much of one another: by runs of eight words, those of templates left out. Pure numpy."""

from collections.abc import Iterator

import numpy as np

from containers.data.filters.run_numbers import Numbers, Places, in_several_places, run_numbers

RUN_WORDS = 8
# A run that so many texts share is a turn of phrase or a template, as in `contamination`.
COMMON_TEXTS = 5


def repeating_texts(words: Numbers, lengths: Places, *, overlap: float) -> Iterator[tuple[int, int]]:
    """Positions of two texts of which the second repeats the first: that share of its words lies in shared runs.

    Runs that five or more texts have are left out, and so are the words that lie in such runs only.

    Args:
        words: of all texts, as `word_numbers` gives them.
        lengths: words of each text.
        overlap: share of the words.
    """
    runs, starts, owners = run_numbers(words, lengths, length=RUN_WORDS)
    # Most runs stand in one place alone: those need no sorting.
    is_several = in_several_places(runs)
    alone = starts[~is_several]
    runs, starts, owners = runs[is_several], starts[is_several], owners[is_several]
    order = np.argsort(runs, kind="stable")
    starts, owners = starts[order], owners[order]
    groups, num_texts = _groups_of_equal(runs[order], owners)
    own = _num_words_covered(lengths, np.concatenate((alone, starts[num_texts[groups] < COMMON_TEXTS])))
    shared = (num_texts[groups] > 1) & (num_texts[groups] < COMMON_TEXTS)
    one, other, start = _runs_with_their_texts(groups[shared], owners[shared], starts[shared])
    if not one.size:
        return
    pairs = one * lengths.size + other
    order = np.lexsort((start, pairs))
    pairs, start = pairs[order], start[order]
    is_last = np.append(pairs[1:] != pairs[:-1], True)
    # Each run covers its words as far as the next run of the pair.
    covered = np.where(is_last, RUN_WORDS, np.minimum(np.diff(start, append=start[-1]), RUN_WORDS))
    begins = np.append(0, np.flatnonzero(is_last)[:-1] + 1)
    first, second = pairs[begins] // lengths.size, pairs[begins] % lengths.size
    is_much = np.add.reduceat(covered, begins) >= overlap * own[first]
    yield from zip(first[is_much].tolist(), second[is_much].tolist(), strict=True)


def _groups_of_equal(runs: Numbers, owners: Places) -> tuple[Places, Places]:
    """The number of each sorted run's group of equal runs, and of how many texts each group is."""
    is_new = np.append(True, runs[1:] != runs[:-1])[: runs.size]
    is_new_text = is_new | np.append(True, owners[1:] != owners[:-1])[: runs.size]
    groups = np.cumsum(is_new) - 1
    return groups, np.bincount(groups[is_new_text])


def _runs_with_their_texts(groups: Places, owners: Places, starts: Places) -> tuple[Places, Places, Places]:
    """Each run once for every other text that has it: its own text, the other one, and where it begins."""
    is_new_text = np.append(True, (groups[1:] != groups[:-1]) | (owners[1:] != owners[:-1]))[: groups.size]
    texts, groups_of_texts = owners[is_new_text], groups[is_new_text]
    first_text = np.searchsorted(groups_of_texts, groups)
    counts = np.searchsorted(groups_of_texts, groups, side="right") - first_text
    place_in_group = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    other = texts[np.repeat(first_text, counts) + place_in_group]
    one = np.repeat(owners, counts)
    is_other = one != other
    return one[is_other], other[is_other], np.repeat(starts, counts)[is_other]


def _num_words_covered(lengths: Places, starts: Places) -> Places:
    """For each text its words that lie in a run which begins at one of `starts`."""
    change = np.zeros(int(lengths.sum()) + 1, dtype=np.int64)
    change[starts] += 1
    # Runs overlap, but no two of them end at the same place.
    change[starts + RUN_WORDS] -= 1
    before = np.append(0, np.cumsum(np.cumsum(change[:-1]) > 0))
    ends = np.cumsum(lengths)
    covered: Places = before[ends] - before[ends - lengths]
    return covered
