"""Groups of prompts that must not be split: a model trained on one of them has seen the others. Pure.

Two prompts are alike when

- they have the same words, or differ in the spelling of one word by one letter (numbers never count as alike);
- they begin with the same whole turns, of eight words or more together: they are of one conversation;
- one repeats the other, or a share of its words, by eight-word runs without those of templates (`repetitions`).

Prompts that are alike to the same prompt are in one group.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from operator import ne

import numpy as np

from containers.data.filters.prompt_words import (
    BEGINNING_WORDS,
    Prompts,
    PromptWords,
    text_of_turns,
)
from containers.data.filters.repetitions import most_texts_sharing, repeating_texts
from containers.data.filters.run_numbers import Flags, Numbers, span_numbers, words_of

# "right" and "light" are five letters, "Iran" and "Iraq" four: one letter of a short word is another word.
_MIN_LETTERS = 5
# Half a prompt that more prompts than this share is a template; they are not compared word by word.
_MAX_COMPARED = 100
# A run of more prompts is of a template. HelpSteer3-schema rows have one of 47 prompts: with 50, the filter would drop
# 39 of them for being like a validation prompt, with 8 none; with both, five tasks asked in another language. The demo
# has one of 12 prompts.
_LIMIT = 8
# To keep prompts on one side of a split costs no row: half of a prompt is enough, and a template does little harm.
_OVERLAP_FOR_SPLIT, _LIMIT_FOR_SPLIT = 0.5, 100
# For this many texts or more, comparing them as numbers takes less time than word by word.
_MANY = 8
_DIGITS = re.compile(r"\d+")

Words = Sequence[str]


class PromptGroups:
    """Groups of prompts that belong together; a prompt that is like no other is its own group."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def join(self, one: str, other: str) -> None:
        """Merge the groups of both prompts."""
        roots = sorted({self.of(one), self.of(other)})
        # The group's name is its smallest prompt id, a digest, so the order of rows does not change it.
        for root in roots[1:]:
            self._above[root] = roots[0]

    def of(self, prompt_id: str) -> str:
        """The name of a prompt's group: the smallest id in it."""
        if prompt_id not in self._above:
            return prompt_id
        root = prompt_id
        while (above := self._above.get(root, root)) != root:
            root = above
        self._above[prompt_id] = root
        return root

    def members(self) -> dict[str, list[str]]:
        """The groups of two or more prompts by name, each sorted."""
        found: dict[str, list[str]] = defaultdict(list)
        for prompt_id in sorted({*self._above, *self._above.values()}):
            found[self.of(prompt_id)].append(prompt_id)
        return dict(found)

    def largest_share(self, prompt_ids: Collection[str]) -> float:
        """The share of these prompts in the group that has the most of them; 0 where there is none."""
        sizes = Counter(self.of(prompt_id) for prompt_id in prompt_ids)
        return max(sizes.values(), default=0) / max(1, len(prompt_ids))


def similar_prompts(prompts: Prompts, *, overlap: float) -> PromptGroups:
    """The groups among these prompts.

    Args:
        prompts: the different prompts.
        overlap: share of a prompt's words that another one must repeat.
    """
    return _grouped(prompts, overlap=overlap, limit=most_texts_sharing(len(prompts.turns), limit=_LIMIT))


def prompts_for_split(prompts: Prompts, *, overlap: float) -> PromptGroups:
    """Larger groups, to keep together where prompts are divided: half of a prompt repeated is enough.

    A run is of a template only in more than 100 prompts, of few prompts too: a split costs no row. But where all
    prompts would be one group, nothing could be divided; then a run of more than a tenth of them is of a template.
    """
    overlap, num_prompts = min(overlap, _OVERLAP_FOR_SPLIT), len(prompts.turns)
    groups = _grouped(prompts, overlap=overlap, limit=_LIMIT_FOR_SPLIT)
    if len({groups.of(prompt_id) for prompt_id in prompts.turns}) != 1:
        return groups
    return _grouped(prompts, overlap=overlap, limit=most_texts_sharing(num_prompts, limit=_LIMIT_FOR_SPLIT))


def _grouped(prompts: Prompts, *, overlap: float, limit: int) -> PromptGroups:
    ids, words = list(prompts.turns), prompts.words
    groups = PromptGroups()
    for one, other in (
        *_of_same_letters(prompts),
        *_of_same_beginning(prompts),
        *_spelt_alike(prompts),
        *repeating_texts(words, overlap=overlap, limit=limit),
    ):
        groups.join(ids[one], ids[other])
    return groups


def _of_same_letters(prompts: Prompts) -> Iterator[tuple[int, int]]:
    """Positions of texts with the same words, also where one writes as one word what the other writes as two."""
    first: dict[str, int] = {}
    turns = list(prompts.turns.values())
    for position in np.flatnonzero(_stand_twice(prompts.letters)).tolist():
        letters = "".join(words_of(text_of_turns(turns[position])))
        if letters and first.setdefault(letters, position) != position:
            yield first[letters], position


def _of_same_beginning(prompts: Prompts) -> Iterator[tuple[int, int]]:
    """Positions of prompts that begin with the same turns, each with the next one."""
    numbers = np.concatenate(
        [span_numbers(words.numbers, words.begins, words.beginning_ends) for _, words in prompts.batches()]
    )
    positions = np.flatnonzero(prompts.words.lengths >= BEGINNING_WORDS)
    order = positions[np.argsort(numbers[positions], kind="stable")]
    is_same = numbers[order[1:]] == numbers[order[:-1]]
    yield from zip(order[:-1][is_same].tolist(), order[1:][is_same].tolist(), strict=True)


def _spelt_alike(prompts: Prompts) -> Iterator[tuple[int, int]]:
    """Yield positions of two prompts that differ in one letter of one word, so one half of their words is the same."""
    halves = [_halves(words) for _, words in prompts.batches()]
    first, second = (np.concatenate(half) for half in zip(*halves, strict=True))
    likely = (prompts.words.lengths > 1) & (_stand_twice(first) | _stand_twice(second))
    positions = np.flatnonzero(likely).tolist()
    turns = list(prompts.turns.values())
    for one, other in _of_same_half([words_of(text_of_turns(turns[position])) for position in positions]):
        yield positions[one], positions[other]


def _halves(words: PromptWords) -> tuple[Numbers, Numbers]:
    """A number for each half of each prompt, which also depends on the number of its words."""
    middles, by_length = words.begins + words.lengths // 2, words.lengths.astype(np.uint64)
    return (
        span_numbers(words.numbers, words.begins, middles) + by_length,
        span_numbers(words.numbers, middles, words.ends) + by_length,
    )


def _stand_twice(numbers: Numbers) -> Flags:
    """Whether each number occurs more than once in the array."""
    _, groups, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    flags: Flags = counts[groups] > 1
    return flags


def _of_same_half(texts: Sequence[Words]) -> Iterator[tuple[int, int]]:
    """Positions of two texts that differ in one letter of one word."""
    with_half: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, words in enumerate(texts):
        middle = len(words) // 2
        if middle:
            first, second = " ".join(words[:middle]), " ".join(words[middle:])
            with_half[len(words), first, "", *_DIGITS.findall(second)].append(number)
            with_half[len(words), "", second, *_DIGITS.findall(first)].append(number)
    for numbers in with_half.values():
        if len(numbers) <= _MAX_COMPARED:
            pairs = combinations(numbers, 2) if len(numbers) < _MANY else _of_nearly_the_same_words(numbers, texts)
            yield from ((one, two) for one, two in pairs if _differ_by_a_letter(texts[one], texts[two]))


def _of_nearly_the_same_words(numbers: Sequence[int], texts: Sequence[Words]) -> Iterator[tuple[int, int]]:
    """Pairs of texts with as many words each that differ in one of them."""
    known: dict[str, int] = {}
    table = np.array([[known.setdefault(word, len(known)) for word in texts[number]] for number in numbers])
    num_other_words = np.zeros((len(numbers), len(numbers)), dtype=np.int64)
    for words in table.T:
        num_other_words += words[:, None] != words
    for one, other in np.argwhere(np.triu(num_other_words == 1)).tolist():
        yield numbers[one], numbers[other]


def _differ_by_a_letter(left: Words, right: Words) -> bool:
    # Most pairs differ in more words: this check needs no step of Python for each word.
    if sum(map(ne, left, right)) != 1:
        return False
    place = list(map(ne, left, right)).index(True)
    return one_letter_apart(left[place], right[place])


def one_letter_apart(left: str, right: str) -> bool:
    """Whether two words of five letters or more differ by a letter: another one, one more, or two exchanged.

    Example: `colour` and `color`, `recieve` and `receive`.
    """
    if min(len(left), len(right)) < _MIN_LETTERS or _DIGITS.search(left) or _DIGITS.search(right):
        return False
    begin = 0
    while begin < min(len(left), len(right)) and left[begin] == right[begin]:
        begin += 1
    left, right = left[begin:], right[begin:]
    while left and right and left[-1] == right[-1]:
        left, right = left[:-1], right[:-1]
    return max(len(left), len(right)) == 1 or (len(left) == 2 and left == right[::-1])
