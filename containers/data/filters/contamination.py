"""Search for prompts of evaluation suites in other data: a model trained on them is judged on what it has seen. Pure.

Words are compared, of all turns but the system's. A prompt of data repeats a suite's prompt if

- it quotes it: the suite's prompt, of five words or more, stands whole in it, however many other prompts quote it too.
  A suite's prompt of fewer words must equal it, or its last turn;
- or its runs of eight words hold half of the suite's prompt (Tülu 3, arXiv:2411.15124, section 3.2; open-instruct,
  decontamination/search.py). Runs of a template and their words do not count (`templates`):
  "I like to host guests at my home …" of RM-Bench would match 168 rows of HH-RLHF about other countries' kitchens.

Others: GPT-3 counts one run of 13 words, or the whole example if it is shorter (arXiv:2005.14165, section 4); PaLM 70 %
of all runs of 8 words (arXiv:2204.02311, section 8); Llama 3 a share of words in runs of 8, another for each benchmark
(arXiv:2407.21783, section 5.1.4). GPT-3 ignores runs in more than ten documents (appendix C), and so misses what is
quoted most.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from containers.data.filters.prompt_words import RUN_WORDS, Prompts, Turns
from containers.data.filters.quotations import (
    Runs,
    are_outside,
    joined,
    runs_of,
    whole_quotations,
    words_repeated_by_pair,
)
from containers.data.filters.run_numbers import Flags, Numbers, Places, run_numbers, span_numbers
from containers.data.filters.templates import TEMPLATE_WAYS, blocks_of, template_runs

# Short questions of 10,570 real prompts that stand within another of them, mostly as a part of another question: 18 of
# 2,501 with five to seven words, 13 of 394 with four, 23 of 164 with three, 29 of 52 with two.
SHORTEST_QUOTATION = 5
# Size of a table that tells most runs of the data from those of suites.
_BITS = 20


@dataclass(frozen=True, slots=True)
class SuitePrompt:
    """One item of a suite; `line` is its line in the suite's file."""

    suite: str
    item_id: str
    line: int
    prompt: Turns


@dataclass(frozen=True, slots=True)
class Contamination:
    """A suite's prompt found in a text; `overlap` is the share of its words that the text repeats.

    Attributes:
        items: all that have this prompt, the first one first.
    """

    items: tuple[SuitePrompt, ...]
    overlap: float


class SuiteIndex:
    """Finds the prompts of suites in the prompts of data; words and runs are numbers (`run_numbers`)."""

    def __init__(self, items: Iterable[SuitePrompt]) -> None:
        every = list(items)
        words = Prompts({str(place): item.prompt for place, item in enumerate(every)}).words
        same_words = defaultdict[int, list[int]](list)
        for place, number in enumerate(span_numbers(words.numbers, words.begins, words.ends).tolist()):
            same_words[number].append(place)
        first = {places[0] for places in same_words.values() if words.lengths[places[0]]}
        # Each prompt once, in the order of the items.
        self._items = [tuple(every[place] for place in places) for places in same_words.values() if places[0] in first]
        self._words = words.only(np.isin(np.arange(len(every)), list(first)))
        self._wholes = span_numbers(self._words.numbers, self._words.begins, self._words.ends)
        self._runs = runs_of(self._words)
        self._known = np.unique(self._runs.numbers)
        self._may_have = np.zeros(1 << _BITS, dtype=np.bool_)
        self._may_have[self._known >> np.uint64(64 - _BITS)] = True

    def find(self, prompts: Prompts, *, overlap: float) -> dict[str, list[Contamination]]:
        """Find, for each prompt that repeats prompts of suites, those that it repeats.

        Args:
            prompts: the different prompts of the data.
            overlap: the least share of a suite's prompt that counts as a repetition.

        Returns:
            Under the id of the prompt: the suite's prompt that it equals, if there is one; then the others, those with
            the greater overlap first.
        """
        known = self._runs_in(prompts)
        whole = np.concatenate((self._equal_in(prompts), self._short_in(prompts), self._long_in(prompts, known)))
        found = dict.fromkeys(map(tuple, whole.tolist()), 1.0)
        for pair, share in self._partly_in(prompts, known, whole=whole):
            if share >= overlap:
                found.setdefault(pair, share)
        by_prompt = defaultdict[str, list[Contamination]](list)
        ids = list(prompts.turns)
        # Sorting is stable: prompts that are equal come first.
        for (text, item), share in sorted(found.items(), key=lambda entry: -entry[1]):
            by_prompt[ids[text]].append(Contamination(self._items[item], share))
        return dict(by_prompt)

    def _runs_in(self, prompts: Prompts) -> Runs:
        """Runs of the prompts that an item has, sorted by number; their starts are places among all words."""
        parts = []
        for begin, words in prompts.batches():
            runs = runs_of(words)
            likely = np.flatnonzero(self._may_have[runs.numbers >> np.uint64(64 - _BITS)])
            runs = runs.take(likely[_are_among(runs.numbers[likely], self._known)])
            first_word = prompts.words.begins[begin : begin + 1].sum()
            parts.append(Runs(runs.numbers, runs.starts + first_word, runs.owners + begin))
        return Runs(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))).by_number()

    def _equal_in(self, prompts: Prompts) -> Places:
        """[P, 2] positions of prompts that equal an item, or whose last turn does, and of the item."""
        order = np.argsort(self._wholes)
        pairs = []
        for begin, words in prompts.batches():
            for begins in (words.begins, words.last_begins):
                text, place = joined(span_numbers(words.numbers, begins, words.ends), self._wholes[order])
                pairs.append(np.stack((text + begin, order[place]), axis=1))
        return np.concatenate(pairs)

    def _short_in(self, prompts: Prompts) -> Places:
        """[P, 2] positions of prompts in which an item stands that has fewer words than a run, and of the item."""
        pairs = [np.zeros((0, 2), dtype=np.int64)]
        for length in range(SHORTEST_QUOTATION, RUN_WORDS):
            items = np.flatnonzero(self._words.lengths == length)
            if not items.size:
                continue
            of_items = self._words.only(self._words.lengths == length)
            numbers, _, _ = run_numbers(of_items.numbers, of_items.lengths, length=length)
            order = np.argsort(numbers)
            for begin, words in prompts.batches():
                runs, _, owners = run_numbers(words.numbers, words.lengths, length=length)
                run, place = joined(runs, numbers[order])
                pairs.append(np.stack((owners[run] + begin, items[order[place]]), axis=1))
        return np.concatenate(pairs)

    def _long_in(self, prompts: Prompts, known: Runs) -> Places:
        """[P, 2] positions of prompts in which an item of eight words or more stands, and of the item."""
        items, texts = whole_quotations(self._words, self._runs, texts=prompts.words, known=known)
        return np.stack((texts, items), axis=1)

    def _partly_in(self, prompts: Prompts, known: Runs, *, whole: Places) -> Iterator[tuple[tuple[int, int], float]]:
        """Yield a prompt and an item of which it has runs, and the share of the item's words in these; no templates."""
        runs, num_items = self._runs, len(self._items)
        sharing = self._num_items_sharing()
        telling = np.flatnonzero(sharing < TEMPLATE_WAYS)
        blocks = blocks_of(runs, self._words, telling=telling, texts=prompts.words, known=known)
        quoted = whole[:, 0] * num_items + whole[:, 1]
        blocks = blocks.take(~np.isin(blocks.texts * num_items + runs.owners[blocks.first], quoted))
        is_template = template_runs(blocks, runs, self._words, sharing=sharing)
        is_own = are_outside(self._words.numbers.size, runs.starts[is_template])
        num_own = np.diff(np.append(0, np.cumsum(is_own))[self._words.ends], prepend=0)
        lengths = blocks.last - blocks.first + 1
        block = np.repeat(np.arange(lengths.size), lengths)
        run = blocks.first[block] + np.arange(block.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        block, run = block[~is_template[run]], run[~is_template[run]]
        pairs = blocks.texts[block] * num_items + runs.owners[run]
        pairs, repeated = words_repeated_by_pair(pairs, runs.starts[run], is_own=is_own)
        shares = repeated / np.maximum(num_own[pairs % num_items], 1)
        for pair, share in zip(pairs.tolist(), shares.tolist(), strict=True):
            yield divmod(pair, num_items), share

    def _num_items_sharing(self) -> Places:
        """How many items have each run."""
        _, run = np.unique(self._runs.numbers, return_inverse=True)
        pairs = np.unique(run * len(self._items) + self._runs.owners)
        counts: Places = np.bincount(pairs // len(self._items), minlength=1)[run]
        return counts


def _are_among(numbers: Numbers, known: Numbers) -> Flags:
    """Whether each number is one of the known ones, which are sorted."""
    if not known.size:
        return np.zeros(numbers.size, dtype=np.bool_)
    places = np.minimum(np.searchsorted(known, numbers), known.size - 1)
    flags: Flags = known[places] == numbers
    return flags
