"""Tell a template from a question that texts quote, by what stands where each text departs from it. Pure numpy.

A text that shares runs with an item shares blocks of it: words of the item in order. Where a block ends within the
item, the text departs from it with another word. From a template, texts depart at one place in many ways: "recipes of
Peru", "recipes of Chile". From a question that they quote they depart nowhere, or each elsewhere, or all in one way.
"""

from typing import NamedTuple

import numpy as np

from containers.data.filters.prompt_words import RUN_WORDS, PromptWords
from containers.data.filters.quotations import Runs, joined
from containers.data.filters.run_numbers import Flags, Numbers, Places

# So many items with a run, and ways to depart from it, make a template. For seven real suites and 9,263 real prompts,
# 4 leaves out 20 more false alarms than 5 and nothing else; 3 also misses six tasks asked in another language.
TEMPLATE_WAYS = 4
# In place of the word where a text begins or ends.
_NO_WORD = np.uint64(0)


class Blocks(NamedTuple):
    """Blocks of items that texts have: [B] position of the text, first and last run, and the words around it.

    `first` and `last` are places among the runs of all items; `before` and `after` are words of the text.
    """

    texts: Places
    first: Places
    last: Places
    before: Numbers
    after: Numbers

    def take(self, flags: Flags) -> "Blocks":
        """Some of the blocks."""
        return Blocks(self.texts[flags], self.first[flags], self.last[flags], self.before[flags], self.after[flags])


def blocks_of(items: Runs, words: PromptWords, *, telling: Places, texts: PromptWords, known: Runs) -> Blocks:
    """The blocks of items that texts have and that hold a telling run.

    Args:
        items: runs of the items, in order.
        words: of the items.
        telling: places of runs that few items have.
        known: runs of the texts that an item has, sorted by number.
    """
    run, place = joined(items.numbers[telling], known.numbers)
    run = telling[run]
    text, start = known.owners[place], known.starts[place]
    order = np.lexsort((run, start - items.starts[run], items.owners[run], text))
    run, text, start = run[order], text[order], start[order]
    goes_on = (np.diff(run) == 1) & (np.diff(start) == 1) & (np.diff(text) == 0) & (np.diff(items.owners[run]) == 0)
    is_first, is_last = np.append(True, ~goes_on)[: run.size], np.append(~goes_on, True)[: run.size]
    first, last, text, begins, ends = run[is_first], run[is_last], text[is_first], start[is_first], start[is_last]
    item = items.owners[first]
    # Other runs of the block may be those that many items have.
    room = np.minimum(words.ends[item] - items.starts[last], texts.ends[text] - ends) - RUN_WORDS
    more = _num_equal(words.numbers, items.starts[last] + RUN_WORDS, texts.numbers, ends + RUN_WORDS, room=room, step=1)
    room = np.minimum(items.starts[first] - words.begins[item], begins - texts.begins[text])
    less = _num_equal(words.numbers, items.starts[first] - 1, texts.numbers, begins - 1, room=room, step=-1)
    first, last, begins, ends = first - less, last + more, begins - less, ends + more + RUN_WORDS
    _, once = np.unique(np.stack((text, first, begins)), axis=1, return_index=True)
    first, last, text, begins, ends = first[once], last[once], text[once], begins[once], ends[once]
    around = np.append(texts.numbers, _NO_WORD)
    before = np.where(begins > texts.begins[text], around[begins - 1], _NO_WORD)
    after = np.where(ends < texts.ends[text], around[ends], _NO_WORD)
    return Blocks(text, first, last, before, after)


def _num_equal(left: Numbers, left_at: Places, right: Numbers, right_at: Places, *, room: Places, step: int) -> Places:
    """How many numbers are equal one after another from these places on, at most `room`."""
    counts = np.zeros(room.size, dtype=np.int64)
    going = np.flatnonzero(room > 0)
    while going.size:
        done = counts[going] * step
        going = going[left[left_at[going] + done] == right[right_at[going] + done]]
        counts[going] += 1
        going = going[counts[going] < room[going]]
    return counts


def template_runs(blocks: Blocks, items: Runs, words: PromptWords, *, sharing: Places) -> Flags:
    """Whether each run of the items is of a template: texts that have it depart from the item in many ways.

    The ways are counted to the right of the run, and to the left: different words at one place, and different places.
    The items that have the run count too. A place counts only if no more texts go on there as the item does.

    Args:
        blocks: of the items in texts that do not quote them whole.
        items: runs of the items, in order.
        words: of the items.
        sharing: [R] number of items that have the run.
    """
    size = items.numbers.size
    # Blocks that hold both a run and the next one.
    go_on = _num_over(blocks.first, blocks.last - 1, size=size)
    departs = items.starts[blocks.last] + RUN_WORDS < words.ends[items.owners[blocks.last]]
    right = _ways(blocks.last[departs], blocks.after[departs], blocks.first[departs], go_on=go_on)
    departs = items.starts[blocks.first] > words.begins[items.owners[blocks.first]]
    go_on = np.append(0, go_on)[:size]
    left = _ways(blocks.first[departs], blocks.before[departs], blocks.last[departs], go_on=go_on)
    num_ways = np.maximum(_num_over(right[1], right[0], size=size), _num_over(*left, size=size))
    flags: Flags = num_ways + sharing >= TEMPLATE_WAYS
    return flags


def _ways(at: Places, words: Numbers, reaches: Places, *, go_on: Places) -> tuple[Places, Places]:
    """The different ways to depart from items: the run at which blocks end, and the farthest run that they hold.

    Args:
        at: [B] run at which a block ends.
        words: [B] word with which its text goes on.
        reaches: [B] run at the block's other end.
        go_on: [R] number of blocks that hold the run and go on.
    """
    order = np.lexsort((-np.abs(reaches - at), words, at))
    at, words, reaches = at[order], words[order], reaches[order]
    is_new = np.append(True, (np.diff(at) != 0) | (words[1:] != words[:-1]))[: at.size]
    is_new &= np.bincount(at, minlength=go_on.size)[at] >= go_on[at]
    return at[is_new], reaches[is_new]


def _num_over(begins: Places, ends: Places, *, size: int) -> Places:
    """How many spans, from begin to end inclusive, hold each of the first `size` numbers; some spans may be empty."""
    change = np.bincount(begins, minlength=size + 1) - np.bincount(ends + 1, minlength=size + 1)
    found: Places = np.cumsum(change)[:size]
    return found
