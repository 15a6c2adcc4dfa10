"""Search for prompts of evaluation suites in other data: a model trained on them is judged on what it has seen. Pure.

A prompt of eight words or more is found in another text by its runs of eight words: the share of its words that are in
a run of the other text (the rule of Tülu 3, arXiv:2411.15124, section 3.2, which takes 8 words and 50 %). A shorter
prompt must equal the other text or its last turn. All turns but the system's count.

A run that five or more different prompts share, of the suites or of the data, is a common phrase or a template and
does not count; words that are only in such runs are left out of the share. Without this rule, the prompt "I like to
host guests at my home …" of RM-Bench matched 168 rows of HH-RLHF about other countries' kitchens.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from containers.data.filters.prompt_words import COMMON_TEXTS, RUN_WORDS, Prompts, Turns
from containers.data.filters.run_numbers import Flags, Numbers, in_several_places, run_numbers, span_numbers

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
    """An item of a suite found in a text; `overlap` is the share of its words that the text repeats."""

    item: SuitePrompt
    overlap: float


@dataclass(slots=True)
class _Text:
    """A prompt of the data: the position of the item that equals it, and its runs that a suite has."""

    whole: int | None = None
    runs: set[int] = field(default_factory=set)


class SuiteIndex:
    """Finds the prompts of suites in the prompts of data; words and runs are numbers (`run_numbers`)."""

    def __init__(self, items: Iterable[SuitePrompt]) -> None:
        self._items = list(items)
        words = Prompts({str(place): item.prompt for place, item in enumerate(self._items)}).words
        numbers = span_numbers(words.numbers, words.begins, words.ends).tolist()
        self._whole: dict[int, int] = {}
        for position in np.flatnonzero(words.lengths).tolist():
            self._whole.setdefault(numbers[position], position)
        # For items with the same prompt, the first one.
        self._first = [self._whole.get(number, position) for position, number in enumerate(numbers)]
        self._runs, _, self._owners = run_numbers(words.numbers, words.lengths, length=RUN_WORDS)
        self._may_have = np.zeros(1 << _BITS, dtype=np.bool_)
        self._may_have[self._runs >> np.uint64(64 - _BITS)] = True

    def find(self, prompts: Prompts, *, overlap: float) -> dict[str, Contamination]:
        """Find, for each prompt that repeats items, the item that it repeats most of.

        Args:
            prompts: the different prompts of the data.
            overlap: the least share of an item's words that counts as a repetition.
        """
        texts = self._read(prompts)
        prompts_with = Counter(run for text in texts.values() for run in text.runs)
        common = {run for run, count in prompts_with.items() if count >= COMMON_TEXTS} | self._common_in_suites()
        best = {key: self._best(text, common) for key, text in texts.items()}
        return {key: found for key, found in best.items() if found is not None and found.overlap >= overlap}

    def _read(self, prompts: Prompts) -> dict[str, _Text]:
        """Return the prompts that have a run of a suite, or equal an item, whole or by their last turn."""
        keys, texts = list(prompts.turns), defaultdict[str, _Text](_Text)
        known_runs, wholes = np.unique(self._runs), np.sort(np.fromiter(self._whole, dtype=np.uint64))
        for begin, words in prompts.batches():
            runs, _, owners = run_numbers(words.numbers, words.lengths, length=RUN_WORDS)
            likely = np.flatnonzero(self._may_have[runs >> np.uint64(64 - _BITS)])
            places = likely[_are_among(runs[likely], known_runs)]
            for run, owner in zip(runs[places].tolist(), owners[places].tolist(), strict=True):
                texts[keys[begin + owner]].runs.add(run)
            # A match of the whole prompt replaces one of its last turn.
            for begins in (words.last_begins, words.begins):
                numbers = span_numbers(words.numbers, begins, words.ends)
                for position in np.flatnonzero(_are_among(numbers, wholes)).tolist():
                    texts[keys[begin + position]].whole = self._whole[int(numbers[position])]
        return texts

    def _common_in_suites(self) -> set[int]:
        """Runs of many different prompts; the same prompt in two suites, or twice in one, is one prompt."""
        several = in_several_places(self._runs)
        owners = zip(self._runs[several].tolist(), self._owners[several].tolist(), strict=True)
        num_prompts = Counter(run for run, _ in {(run, self._first[owner]) for run, owner in owners})
        return {run for run, count in num_prompts.items() if count >= COMMON_TEXTS}

    def _best(self, text: _Text, common: set[int]) -> Contamination | None:
        if text.whole is not None:
            return Contamination(self._items[text.whole], 1.0)
        telling = text.runs - common
        positions = set(self._owners[np.isin(self._runs, np.fromiter(telling, dtype=np.uint64))].tolist())
        shares = [(self._share(position, telling, common), -position) for position in positions]
        share, position = max(shares, default=(0.0, 0))
        return Contamination(self._items[-position], share) if shares else None

    def _share(self, position: int, telling: set[int], common: set[int]) -> float:
        """Words of the item in runs that the text has, over its words in runs that are not common."""
        own: set[int] = set()
        covered: set[int] = set()
        begin, end = np.searchsorted(self._owners, (position, position + 1))
        for place, run in enumerate(self._runs[begin:end].tolist()):
            if run not in common:
                own.update(range(place, place + RUN_WORDS))
            if run in telling:
                covered.update(range(place, place + RUN_WORDS))
        return len(covered) / len(own)


def _are_among(numbers: Numbers, known: Numbers) -> Flags:
    """Whether each number is one of the known ones, which are sorted."""
    if not known.size:
        return np.zeros(numbers.size, dtype=np.bool_)
    places = np.minimum(np.searchsorted(known, numbers), known.size - 1)
    flags: Flags = known[places] == numbers
    return flags
